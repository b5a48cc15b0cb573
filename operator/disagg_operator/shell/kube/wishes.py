"""Which events of our own kinds are about something that somebody wants.

A status, ours or the planner's, is written through the very object that is watched. Were each write a reason to look
again, a status that came out different every time would keep operator and API server busy for ever. What is wanted
shows in the generation and in the metadata; the status is put right by the resync if somebody else changed it.
"""

from collections.abc import Mapping
from typing import Any


class Wishes:
    """Remembers one small value for each object that exists."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, ...]] = {}

    def are_new(self, event: Mapping[str, Any]) -> bool:
        """Whether an event of a watch (type None: found at the start) shows more than another status."""
        meta = event["object"]["metadata"]
        uid = str(meta.get("uid"))
        if event["type"] == "DELETED":
            self._seen.pop(uid, None)
            return True
        now = (
            meta.get("generation"),
            meta.get("deletionTimestamp"),
            *(tuple(sorted((meta.get(field) or {}).items())) for field in ("labels", "annotations")),
            tuple(owner.get("uid") for owner in meta.get("ownerReferences") or ()),
        )
        before = self._seen.get(uid)
        self._seen[uid] = now
        return before != now
