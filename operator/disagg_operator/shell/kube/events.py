"""Events: a sentence for people at each decision and each turn of a condition.

The same sentence about the same object is said once in a while, however often the reconcile comes by; after another one
it is news again, so that the newest Event tells how things stand. An Event that cannot be posted is logged and
forgotten: telling must never keep the operator from acting.
"""

import logging
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

from disagg_contract.labels import MANAGER
from disagg_operator.core.status import Note
from disagg_operator.errors import ApiError
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.resources import EVENTS

log = logging.getLogger(__name__)

REPEAT_SECONDS = 300.0
"""Silence between two of the same sentence with nothing else in between."""
TURN_SECONDS = 10.0
"""Silence between two of the same sentence with another in between: what flaps faster is not told in full."""
NOTE_LIMIT = 1024
REMEMBERED = 4096


class Recorder:
    """Posts Events about objects."""

    def __init__(self, api: Api, *, identity: str, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._identity = identity
        self._clock = clock
        self._said: dict[tuple[str, str, str], float] = {}
        self._last: dict[str, tuple[str, str, str]] = {}

    async def post(self, regarding: Object, note: Note, *, action: str = "Reconcile") -> None:
        """Say ``note`` about an object unless it was said lately."""
        metadata = regarding["metadata"]
        now = self._clock()
        key = (metadata["uid"], note.reason, note.message)
        silence = REPEAT_SECONDS if self._last.get(key[0]) == key else TURN_SECONDS
        if now - self._said.get(key, -REPEAT_SECONDS) < silence:
            return
        self._remember(key, now)
        log.info("%s/%s: %s: %s", metadata["namespace"], metadata["name"], note.reason, note.message)
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{metadata['name'][:40].rstrip('-.')}.{secrets.token_hex(8)}",
                "namespace": metadata["namespace"],
            },
            "eventTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": f"disagg.dev/{MANAGER}",
            "reportingInstance": self._identity[:128],
            "action": action,
            "reason": note.reason,
            "type": note.type,
            "note": note.message[:NOTE_LIMIT],
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        }
        try:
            await self._api.create(EVENTS, body, namespace=metadata["namespace"])
        except ApiError as error:
            log.warning("event %s about %s/%s: %s", note.reason, metadata["namespace"], metadata["name"], error)

    def _remember(self, key: tuple[str, str, str], now: float) -> None:
        if len(self._said) >= REMEMBERED:
            self._said = {old: at for old, at in self._said.items() if now - at < REPEAT_SECONDS}
            self._last = {uid: last for uid, last in self._last.items() if last in self._said}
        self._said[key] = now
        self._last[key[0]] = key
