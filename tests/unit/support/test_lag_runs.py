"""Void runs: a failed run that lagged is run again once, everything else stands."""

import pytest

from tests.support.lag import Verdict, judge

pytest_plugins = ["pytester"]

CONFTEST = """
from tests.support.lag import (
    lag, pytest_itemcollected, pytest_report_teststatus, pytest_runtest_call, pytest_runtest_protocol,
    pytest_terminal_summary,
)
"""
TEST = """
from itertools import count
import pytest
from disagg_contract.metrics import LAG_BUCKETS
from disagg_load.lag import LoopLag

runs = count(1)

@pytest.fixture
def fresh():
    return object()

seen = []

def test_load(lag, fresh):
    run = next(runs)
    assert fresh not in seen
    seen.append(fresh)
    late, holds = {cases}[run - 1]
    lag.loops["decode-a"] = LoopLag(iterations=100, late=late, within=(100,) * len(LAG_BUCKETS))
    assert holds, f"run {{run}} did not hold"

def test_beside_it():
    assert True
"""


@pytest.mark.parametrize(
    ("failed", "void", "run", "verdict"),
    [
        (False, False, 1, Verdict.STANDS),
        (False, True, 1, Verdict.STANDS),
        (True, False, 1, Verdict.STANDS),
        (True, True, 1, Verdict.AGAIN),
        (True, True, 2, Verdict.TOO_SLOW),
        (True, False, 2, Verdict.STANDS),
        (False, True, 2, Verdict.STANDS),
    ],
)
def test_only_a_failed_run_that_lagged_is_not_what_counts(failed: bool, void: bool, run: int, verdict: Verdict) -> None:
    assert judge(failed=failed, void=void, run=run) is verdict


def outcome(pytester: pytest.Pytester, cases: list[tuple[int, bool]]) -> tuple[dict[str, int], str]:
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(TEST.format(cases=cases))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly")
    return result.parseoutcomes(), result.stdout.str()


def test_a_void_run_is_run_again_and_the_second_run_counts(pytester: pytest.Pytester) -> None:
    outcomes, text = outcome(pytester, [(90, False), (0, True)])
    assert outcomes == {"passed": 2, "void": 1}
    assert "test_load: VOID, run again: 90.0% of 100 iterations late" in text
    assert "run 1 did not hold" in text
    assert "test_load (run 2): 0.0% of 100 iterations late" in text


def test_two_void_runs_fail_and_name_the_machine(pytester: pytest.Pytester) -> None:
    outcomes, text = outcome(pytester, [(90, False), (80, False)])
    assert outcomes == {"passed": 1, "void": 1, "failed": 1}
    assert "run 2 did not hold" in text
    assert "This machine is too slow for the test: it failed 2 times" in text
    assert "80.0% of 100 iterations late" in text


def test_a_failure_without_lag_fails_at_once(pytester: pytest.Pytester) -> None:
    outcomes, text = outcome(pytester, [(1, False)])
    assert outcomes == {"passed": 1, "failed": 1}
    assert "test_load: 1.0% of 100 iterations late" in text
    assert "too slow" not in text


def test_a_void_run_with_a_fault_behind_it_fails_on_its_second_run(pytester: pytest.Pytester) -> None:
    outcomes, text = outcome(pytester, [(90, False), (0, False)])
    assert outcomes == {"passed": 1, "void": 1, "failed": 1}
    assert "too slow" not in text


def test_a_run_that_holds_stands_whatever_the_lag(pytester: pytest.Pytester) -> None:
    outcomes, text = outcome(pytester, [(90, True)])
    assert outcomes == {"passed": 2}
    assert "test_load: 90.0% of 100 iterations late" in text
