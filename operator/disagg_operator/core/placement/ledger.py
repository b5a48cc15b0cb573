"""Reservations that the watch does not show yet.

Between the patch that pins a pod and the watch event that says so lies a moment in which a second plan would see the
node as free. The ledger bridges it: it holds what was promised in this process until the watch shows the pod pinned,
bound or gone, or until the promise is too old to be true. It also remembers domains that failed a bind deadline.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from disagg_operator.core.placement.snapshot import PodUse

PROMISE_SECONDS = 60.0


@dataclass(slots=True)
class _Failure:
    until: float
    times: int


@dataclass(slots=True)
class Ledger:
    """In-process memory of one planner; every method takes ``now`` in seconds."""

    first_back_off_seconds: float = 10.0
    longest_back_off_seconds: float = 300.0
    _promises: dict[str, tuple[PodUse, float]] = field(default_factory=dict)
    _failures: dict[tuple[str, str], _Failure] = field(default_factory=dict)

    def promise(self, uses: Iterable[PodUse], *, now: float) -> None:
        """These pods are about to be pinned."""
        for use in uses:
            self._promises[use.uid] = (use, now)

    def withdraw(self, uids: Iterable[str]) -> None:
        """The watch shows what came of the promise, the patch failed, or the pod was given back."""
        for uid in uids:
            self._promises.pop(uid, None)

    def outstanding(self, *, now: float) -> tuple[PodUse, ...]:
        """Promises that still count. One that nothing was heard of for a minute is forgotten."""
        self._promises = {uid: (use, at) for uid, (use, at) in self._promises.items() if now - at < PROMISE_SECONDS}
        return tuple(use for use, _ in self._promises.values())

    def failed(self, owner: str, domain: str, *, now: float) -> float:
        """A gang of ``owner`` missed its deadline in ``domain``: leave it out, longer each time. Returns until when."""
        times = self._failures[(owner, domain)].times + 1 if (owner, domain) in self._failures else 1
        back_off: float = min(self.longest_back_off_seconds, self.first_back_off_seconds * 2.0 ** (times - 1))
        self._failures[(owner, domain)] = _Failure(now + back_off, times)
        return now + back_off

    def bound(self, owner: str) -> None:
        """A gang of ``owner`` is bound: its failures are history."""
        self._failures = {key: failure for key, failure in self._failures.items() if key[0] != owner}

    def excluded(self, owner: str, *, now: float) -> frozenset[str]:
        """Domains to leave out for ``owner`` now."""
        return frozenset(
            domain for (name, domain), failure in self._failures.items() if name == owner and failure.until > now
        )

    def wait(self, owner: str, *, now: float) -> float | None:
        """Seconds until the first excluded domain of ``owner`` may be tried again; None when there is none."""
        ends = [failure.until - now for (name, _), failure in self._failures.items() if name == owner]
        later = [seconds for seconds in ends if seconds > 0]
        return min(later) if later else None

    def forget(self, owner: str) -> None:
        """The deployment is gone."""
        self.bound(owner)
