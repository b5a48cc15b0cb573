"""When a program of the cluster counts as dead."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from embedded import layout
from embedded.layout import Cluster
from embedded.processes import Process


@dataclass
class Looks:
    """What each look at the processes finds; the last one stays."""

    found: list[list[Process]]
    count: int = field(default=0)

    def __call__(self) -> list[Process]:
        self.count += 1
        return self.found[min(self.count, len(self.found)) - 1]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(layout, "_LOOK_SECONDS", 0.0)

    def build(looks: Looks) -> Cluster:
        made: Any = object.__new__(Cluster)
        monkeypatch.setattr(Cluster, "processes", lambda _: looks())
        monkeypatch.setattr(Cluster, "log", lambda _, role: tmp_path / f"{role}.log")
        return made  # type: ignore[no-any-return]

    return build


def test_a_process_between_two_programs_is_not_dead(cluster: Any) -> None:
    process = Process(1, "node-2", "", 0, 0)
    assert cluster(Looks([[], [], [process]])).why_dead("node-2") is None


def test_one_that_stays_away_is_dead_and_its_log_is_shown(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "node-2.log").write_text("mount: no such device\n")
    looks = Looks([[]])
    assert "mount: no such device" in (cluster(looks).why_dead("node-2") or "")
    assert looks.count > 1
