"""Loads of a command line whose rate changes with time."""

from argparse import Namespace

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.simulation.loads import build_load, build_source
from disagg_simulator.deployment import Mode


def flags(workload: str, **given: object) -> Namespace:
    nothing = dict.fromkeys(("rate", "trace", "input", "output", "lengths", "burstiness", "requests"))
    return Namespace(**(nothing | {"workload": workload, "seed": 1} | given))


def test_a_load_with_a_length_of_its_own_has_it_unless_requests_are_asked_for() -> None:
    whole = build_load(flags("six-hours", rate=1.0), Mode.COLOCATED)
    assert whole.span_seconds == pytest.approx(6 * 3600, abs=60)
    assert len(build_load(flags("six-hours", requests=50), Mode.COLOCATED)) == 50
    assert len(build_load(flags("chat"), Mode.COLOCATED)) == 3000


@pytest.mark.parametrize("workload", ["six-hours", "chat?burst=2:10:20"])
def test_a_search_over_rates_needs_a_steady_one(workload: str) -> None:
    with pytest.raises(UsageError, match="whose rate changes with time"):
        build_source(flags(workload))
    assert len(build_source(flags("chat"))(2.5, 7)) == 7
