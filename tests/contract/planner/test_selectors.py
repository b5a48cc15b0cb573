"""Every query of the planner finds what routers and workers really export (case PM7)."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_contract.labels import Role
from disagg_engine.batching import Counts
from disagg_planner.core import signals
from disagg_planner.shell import queries
from disagg_planner.shell.exposition import read_counters
from disagg_planner.shell.queries import Target
from disagg_router.core.fleet import Fleet
from disagg_router.core.tally import Slo, Tally
from disagg_router.shell.exposition import Exposition
from disagg_workers.telemetry import Snapshot, Telemetry

MODEL = "opt-13b"
HERE = Target(namespace="team-a", deployment="chat-13b", model=MODEL)
ROUTER_SIGNALS = [signal for signal in signals.SIGNALS if signal.role is None]
WORKER_SIGNALS = [signal for signal in signals.SIGNALS if signal.role is not None]


def router_page(*, started: int = 0) -> str:
    tally = Tally(slo=Slo(), model=MODEL)
    for _ in range(started):
        tally.model(MODEL).start()
    tally.model("no-such-model").start()
    return Exposition(tally, Fleet(model=MODEL)).page().decode()


def worker_page() -> str:
    nothing = dict.fromkeys(Counts.__dataclass_fields__, 0)
    snapshot = Snapshot(
        counts=Counts(**nothing),
        waiting_tokens=0,
        kv_usage=0.0,
        pinned_blocks=0,
        leases_expired=0,
        ready=True,
        draining=False,
    )
    telemetry = Telemetry(model=MODEL, kv_capacity_tokens=58_594, time_scale=1.0)
    return telemetry.expose(snapshot).decode()


@pytest.fixture
def scraped(prom: Any) -> Any:
    """Two deployments in one namespace, and a namesake in another, as a cluster's Prometheus would hold them."""
    for namespace, deployment, load in (
        ("team-a", "chat-13b", 7),
        ("team-a", "chat", 100),
        ("team-b", "chat-13b", 900),
    ):
        labels = {"namespace": namespace, "disagg_deployment": deployment}
        for late in (False, True):
            prom.scrape(router_page(started=load if late else 0), late=late, **labels, pod=f"{deployment}-router-0")
            for role in (Role.PREFILL, Role.DECODE):
                prom.scrape(
                    worker_page(), late=late, **labels, disagg_role=role.value, pod=f"{deployment}-{role.value}-0"
                )
            up = f'up{{job="pods"}} {0 if deployment == "chat" else 1}\n'
            prom.scrape("# TYPE up gauge\n" + up, late=late, **labels, pod=f"{deployment}-router-0")
    return prom


def test_pm7_every_selector_matches_a_real_page(scraped: Any) -> None:
    unmatched = [signal.key for signal in signals.SIGNALS if not scraped.evaluate(queries.increase(HERE, signal, 30.0))]
    assert unmatched == []


def test_pm7_two_deployments_in_one_namespace_do_not_mix(scraped: Any) -> None:
    assert scraped.evaluate(queries.increase(HERE, signals.STARTED, 30.0)) == [({}, "7.0")]
    assert scraped.evaluate(queries.silent(HERE)) == []
    other = Target(namespace="team-a", deployment="chat", model=MODEL)
    assert scraped.evaluate(queries.increase(other, signals.STARTED, 30.0)) == [({}, "100.0")]
    assert len(scraped.evaluate(queries.silent(other))) == 1
    assert (
        scraped.evaluate(queries.increase(Target(namespace="x", deployment="y", model=MODEL), signals.STARTED, 1)) == []
    )


def test_requests_for_unknown_models_are_no_load(scraped: Any) -> None:
    unknown = Target(namespace="team-a", deployment="chat-13b", model="unknown")
    assert scraped.evaluate(queries.increase(unknown, signals.STARTED, 30.0))[0][1] == "0.0"


def test_pm7_scraping_finds_every_series_on_the_real_pages() -> None:
    for page, wanted in ((router_page(), ROUTER_SIGNALS), (worker_page(), WORKER_SIGNALS)):
        counters = read_counters(page, wanted, model=MODEL)
        found = set(counters.values) | set(counters.buckets)
        # A worker's page answers for its own role only; both roles export the same series.
        assert {key.split(":", 1)[-1] for key in found} == {signal.series for signal in wanted}


def test_label_values_are_escaped() -> None:
    assert Target(namespace='a"b\\', deployment="d", model="m").selector().startswith('{namespace="a\\"b\\\\"')


def test_durations_are_milliseconds() -> None:
    assert [queries.duration(seconds) for seconds in (30.0, 2.5, 0.0001)] == ["30000ms", "2500ms", "1ms"]


@pytest.mark.parametrize("text", ["no metrics here {", 'a{b="c} 1', "<html>login</html>"])
def test_text_that_is_no_exposition_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_counters(text, signals.SIGNALS, model=MODEL)
