"""How far the loops of the workers that run here lag behind: read from the workers themselves."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Iterable

from disagg_contract.control import InstanceStatus
from disagg_contract.ports import METRICS_PATH
from disagg_load.lag import LoopLag

_ANSWER_SECONDS = 2.0


def read_loops(instances: Iterable[InstanceStatus]) -> dict[str, LoopLag]:
    """Lag of each instance that answers, by name. One that starts, stops or hangs is left out."""
    found = {}
    for instance in instances:
        try:
            with urllib.request.urlopen(instance.url + METRICS_PATH, timeout=_ANSWER_SECONDS) as answer:
                text = answer.read().decode()
        except (OSError, ValueError, http.client.HTTPException):
            continue
        lag = LoopLag.from_metrics(text)
        if lag is not None:
            found[instance.name] = lag
    return found
