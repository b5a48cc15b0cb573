"""Runs under load on real pods: how far the workers' loops lagged, and void runs.

A test that puts load on pods takes the fixture ``lag`` and names the deployments: ``lag.watch(serving, "chat-13b")``.
The metrics of their workers are read at ``lag.read()`` (before instances go away) and when the test ends, passed or
not, and the terminal summary has a line for each run. Workers that are processes and no pods report by themselves:
``lag.loops |= served.lag()``. A run that lagged (``disagg_load.lag``: some loop was late by over a fifth of a step in
more than one iteration of twenty) shows what the machine does, not what the product does. So when such a run fails it
is *void*: it is reported as ``VOID``, and the test is run again from the start, once. If that run fails and is void as
well, the test fails and says that the machine is too slow. A failure without lag, and one of a fixture, is a failure at
once; a test that passes although it lagged has passed.

The hooks work where a conftest.py imports them.
"""

from collections.abc import Generator, Mapping
from contextlib import suppress
from enum import Enum, auto
from subprocess import TimeoutExpired

import pytest
from _pytest.runner import runtestprotocol

from disagg_contract import ports
from disagg_load.lag import LoopLag, is_void, show_lag
from tests.support.kube import ClusterError, Kube
from tests.support.serving import pods

RUNS = 2
SECONDS_PER_RUN = 300


class Verdict(Enum):
    """What becomes of a run of a test."""

    STANDS = auto()
    AGAIN = auto()
    TOO_SLOW = auto()


def judge(*, failed: bool, void: bool, run: int) -> Verdict:
    """The verdict on the ``run``-th run (from 1) of a test."""
    if not (failed and void):
        return Verdict.STANDS
    return Verdict.AGAIN if run < RUNS else Verdict.TOO_SLOW


class LagWatch:
    """Collects the lag of the workers of deployments, by pod; of a pod that has gone the last reading counts."""

    def __init__(self) -> None:
        self.loops: dict[str, LoopLag] = {}
        self._watched: list[tuple[Kube, str]] = []

    def watch(self, kube: Kube, deployment: str) -> None:
        self._watched.append((kube, deployment))

    def read(self) -> None:
        """Read what can be read now. What can't must not hide why a test failed."""
        for kube, deployment in self._watched:
            with suppress(ClusterError, TimeoutExpired):
                for pod in pods(kube, deployment):
                    self._read(kube, pod["metadata"]["name"])

    def _read(self, kube: Kube, pod: str) -> None:
        # A pod that starts or goes away has nothing to say.
        with suppress(ClusterError):
            found = LoopLag.from_metrics(kube.pod_get(pod, ports.METRICS_PATH))
            if found is not None:
                self.loops[pod] = found


WATCH = pytest.StashKey[LagWatch]()
LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def lag(request: pytest.FixtureRequest) -> LagWatch:
    """Watches the workers of deployments under load; see the module's text."""
    found = request.node.stash[WATCH] = LagWatch()
    return found


def is_watched(item: pytest.Item) -> bool:
    return lag.__name__ in getattr(item, "fixturenames", ())


def pytest_itemcollected(item: pytest.Item) -> None:
    # Each run has its own time limit.
    if is_watched(item):
        item.add_marker(pytest.mark.timeout(SECONDS_PER_RUN, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    finally:
        # Before fixtures take the pods away.
        if (watch := item.stash.get(WATCH, None)) is not None:
            watch.read()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not is_watched(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for run in range(1, RUNS + 1):
        item.stash[WATCH] = LagWatch()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        loops = item.stash[WATCH].loops
        verdict = judge(failed=any(r.when == "call" and r.failed for r in reports), void=is_void(loops), run=run)
        item.config.stash.setdefault(LINES, []).append(line(item, run, loops, verdict))
        for report in reports:
            if report.when == "call" and report.failed:
                rewrite(report, verdict, loops)
            item.ihook.pytest_runtest_logreport(report=report)
        if verdict is not Verdict.AGAIN:
            break
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def line(item: pytest.Item, run: int, loops: Mapping[str, LoopLag], verdict: Verdict) -> str:
    words = {Verdict.STANDS: "", Verdict.AGAIN: "VOID, run again: ", Verdict.TOO_SLOW: "VOID again: "}
    name = item.name if run == 1 else f"{item.name} (run {run})"
    return f"{name}: {words[verdict]}{show_lag(loops)}"


def rewrite(report: pytest.TestReport, verdict: Verdict, loops: Mapping[str, LoopLag]) -> None:
    """Say in the report of a failed run what was judged."""
    if verdict is Verdict.AGAIN:
        report.outcome = "void"  # type: ignore[assignment]
    elif verdict is Verdict.TOO_SLOW:
        report.longrepr = (
            f"{report.longreprtext}\n\nThis machine is too slow for the test: it failed {RUNS} times and each run was "
            f"void, because the workers' loops lagged ({show_lag(loops)}). Give it more CPU, or less to do beside it."
        )


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    if report.outcome == "void":  # type: ignore[comparison-overlap]
        return "void", "V", ("VOID (the workers' loops lagged; run again)", {"yellow": True})
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines, config.stash[LINES] = config.stash.get(LINES, []), []
    if not lines:  # nothing ran under load, or another folder's conftest has told it already
        return
    terminalreporter.section("lag of the workers' loops under load")
    for text in lines:
        terminalreporter.write_line(text)
    for report in terminalreporter.getreports("void"):
        terminalreporter.section(f"void run of {report.nodeid}", sep="-")
        terminalreporter.write_line(report.longreprtext)
