"""Gangs that wait, and what is kept free for the one that waited longest.

A gang that does not fit never stops another that does: small gangs are placed into what a large one cannot use. Left at
that, a stream of small gangs could keep a large one out for ever. So a gang that has waited for ``AGING_SECONDS`` holds
the domain that came closest, if it would fit there once that were empty: nothing new goes there until the gang is
placed or gone. Replacements for gangs that are placed already are not held up.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from disagg_operator.core.placement.planner import plan
from disagg_operator.core.placement.request import GangRequest, NoRoom, Placed
from disagg_operator.core.placement.snapshot import Snapshot

AGING_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    since: float
    hold: str | None


@dataclass(slots=True)
class Line:
    """In-process memory of one planner; every method takes ``now`` in seconds."""

    aging_seconds: float = AGING_SECONDS
    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def refused(self, owner: str, request: GangRequest, answer: NoRoom, snapshot: Snapshot, *, now: float) -> None:
        """The gang of ``owner`` found no room. It keeps its turn; what it would hold follows the newest answer."""
        known = self._waiting.get(owner)
        hold = None
        if answer.best_domain is not None:
            alone = replace(
                request,
                within=answer.best_domain,
                prefer=None,
                excluded=frozenset(),
                present=(),
                later=(),
                preemption=False,
            )
            fits = request.required is not None and isinstance(plan(alone, snapshot.emptied()), Placed)
            hold = answer.best_domain if fits else None
        self._waiting[owner] = _Waiting(now if known is None else known.since, hold)

    def leave(self, owner: str) -> None:
        """Its gang is placed, or it is gone."""
        self._waiting.pop(owner, None)

    def held(self, owner: str, *, now: float) -> frozenset[str]:
        """Domains that ``owner`` must not start anything new in, because somebody has waited longer for them."""
        mine = self._waiting[owner].since if owner in self._waiting else now
        return frozenset(
            item.hold
            for other, item in self._waiting.items()
            if other != owner and item.hold is not None and item.since < mine and now - item.since >= self.aging_seconds
        )
