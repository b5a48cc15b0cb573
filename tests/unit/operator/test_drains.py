"""What the operator asks of draining pods."""

import asyncio
from typing import Any, cast

import aiohttp

from disagg_contract import labels
from disagg_operator.render.instances import DRAIN_STARTED
from disagg_operator.shell.kube.drains import SETTLE_SECONDS, Drains


class Unasked:
    """A session that must not be used."""


def draining(*, since: float) -> dict[str, Any]:
    notes = {DRAIN_STARTED: str(since), labels.WORKER_INFO: "{}"}
    own = {labels.DRAINING: "true", labels.ROLE: "decode", labels.INSTANCE: "a", labels.LEADER: "true"}
    return {
        "metadata": {
            "name": "a",
            "uid": "u",
            "labels": own,
            "annotations": notes,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }


def empty(pod: dict[str, Any], *, now: float) -> frozenset[str]:
    drains = Drains(cast(aiohttp.ClientSession, Unasked()), clock=lambda: now)
    return asyncio.run(drains.ask([pod]))


def test_a_real_engine_drains_in_its_stop_hook() -> None:
    pod = draining(since=100.0)
    assert empty(pod, now=100.0 + SETTLE_SECONDS / 2) == frozenset()
    assert empty(pod, now=100.0 + SETTLE_SECONDS) == {"u"}
