"""Drains of pods: tell the worker after the routers had time to see the mark, then ask until it is empty.

A real engine knows nothing of drains. Its pod waits in its stop hook until nothing runs any more, so it may be deleted
as soon as routers have seen the mark.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

import aiohttp

from disagg_contract import labels, ports
from disagg_contract.tokens import Tokens
from disagg_operator.render.reading import instance
from disagg_operator.shell.drain import cancel_drain, drain_state, start_drain
from disagg_operator.shell.kube.api import Object

SETTLE_SECONDS = 2.0
"""Between the mark and telling the worker: what a router chose before it saw the mark may still arrive."""


def base_url(pod: Object) -> str | None:
    """Where the worker of a pod listens; None while it has no address."""
    address = pod.get("status", {}).get("podIP")
    if not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{ports.HTTP}"


class Drains:
    """Which pods were told, and what they answer. Losing this memory costs a repeated request, nothing else."""

    def __init__(self, session: aiohttp.ClientSession, *, clock: Callable[[], float] = time.time) -> None:
        self._session = session
        self._clock = clock
        self._told: set[str] = set()
        self._tokens: dict[tuple[str, str], Tokens] = {}

    def know(self, namespace: str, deployment: str, tokens: Tokens) -> None:
        """What the workers of a deployment want to be shown from now on."""
        self._tokens[namespace, deployment] = tokens

    def forget(self, namespace: str, deployment: str) -> None:
        """The deployment is gone."""
        self._tokens.pop((namespace, deployment), None)

    def _shown(self, pod: Object) -> Tokens | None:
        metadata = pod["metadata"]
        return self._tokens.get((metadata.get("namespace", ""), metadata["labels"].get(labels.DEPLOYMENT, "")))

    async def ask(self, pods: Iterable[Object]) -> frozenset[str]:
        """UIDs of the draining pods among these whose workers say that they are empty."""
        marked = [pod for pod in pods if self._asks(pod)]
        answers = await asyncio.gather(*(self._ask(pod) for pod in marked))
        return frozenset(pod["metadata"]["uid"] for pod, empty in zip(marked, answers, strict=True) if empty)

    async def cancel(self, pod: Object) -> None:
        """The mark was taken away: the worker may take requests again."""
        base = base_url(pod)
        if base is not None:
            await cancel_drain(self._session, base, tokens=self._shown(pod))
        self._told.discard(pod["metadata"]["uid"])

    def _asks(self, pod: Object) -> bool:
        seen = instance(pod)
        return seen.draining and seen.alive

    async def _ask(self, pod: Object) -> bool:
        seen = instance(pod)
        base = base_url(pod)
        if base is None or seen.draining_since is None:
            return False
        if self._clock() - seen.draining_since < SETTLE_SECONDS:
            return False
        if labels.WORKER_INFO in (pod["metadata"].get("annotations") or {}):
            return True
        if seen.uid not in self._told:
            if await start_drain(self._session, base, tokens=self._shown(pod)):
                self._told.add(seen.uid)
            return False
        state = await drain_state(self._session, base, tokens=self._shown(pod))
        if state is not None and not state.draining:
            # The container was restarted meanwhile and knows nothing of the drain.
            self._told.discard(seen.uid)
            return False
        return state is not None and state.empty
