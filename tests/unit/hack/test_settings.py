"""What a state folder remembers, and what it refuses."""

import os
import tempfile
from pathlib import Path

import pytest

from embedded.errors import SpecError
from embedded.lifecycle import down, up
from embedded.lock import locked
from embedded.names import Subnets
from embedded.settings import Record, Settings, default_cache, default_state, merge, read_record, write_record


def test_options_that_are_not_given_keep_their_values() -> None:
    saved = Settings(nodes=3, gpus="8,4")
    assert merge(saved, {"nodes": None, "gpus": "2", "command": "up"}) == Settings(nodes=3, gpus="2")


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = Record(Settings(kwok=7), Subnets(123), "boot")
    assert read_record(tmp_path) is None
    write_record(tmp_path, record)
    assert read_record(tmp_path) == record


@pytest.mark.parametrize("text", ["", "{}", '{"settings": {"unknown": 1}, "octet": 1, "boot_id": ""}'])
def test_a_damaged_record_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(SpecError, match="run `down`"):
        read_record(tmp_path)


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_folder_of_someone_else_is_not_touched(command: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="dg") as name:
        folder = Path(name)
        (folder / "thesis.txt").write_text("years of work")
        with pytest.raises(SpecError, match="nothing was touched"):
            up(folder, cache=folder, options={}) if command == "up" else down(folder)
        assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_folders_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISAGG_CLUSTER_STATE", "/srv/c")
    assert default_state() == Path("/srv/c")
    monkeypatch.delenv("DISAGG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "disagg"
    monkeypatch.setenv("DISAGG_CACHE", "/srv/cache")
    assert default_cache() == Path("/srv/cache")


def test_a_lock_names_its_holder_and_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(2):
        with locked(path, purpose="nobody"):
            assert path.read_text().strip() == str(os.getpid())
