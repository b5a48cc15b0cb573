"""Goodput: the highest rate at which enough requests meet both objectives.

The search needs nothing but trials: a rate in, an attainment out. It brackets the knee by steps that double in both
directions, halves the bracket (geometrically, since knees lie anywhere between a request a minute and thousands a
second), and reports the highest rate that passed. What makes it trustworthy:

common random numbers   all trials see the same requests; only the time axis of their arrivals is stretched, so that two
                        rates differ by the rate alone
confidence              a trial whose 95 % interval straddles the target is repeated with `growth` times the requests,
                        and so is every later one, since what remains is near the knee
stability               a rate beyond capacity fails, however short the run and loose the objective
outvoting               a single trial never decides: the knee is where the fewest trials contradict it, and before the
                        search ends, trials nearby on each side must agree; if they don't, it goes on from there

Time and randomness are the trials' business: this module is a pure function of what they answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite, sqrt

from disagg_load.report import Attainment
from disagg_simulator.errors import OptionError

DEFAULT_TARGET = 0.9
DEFAULT_TOLERANCE = 0.005
DEFAULT_GROWTH = 4
LOWEST_RATE = 1e-5
"""Requests a second at which no request meets another: who fails here fails everywhere."""

HIGHEST_RATE = 1e9
MOST_EVALUATIONS = 80
CONFIRMATION = ((1.08, 2), (1.5, 3))
"""Within each factor of the knee, and on each side, so many more trials must agree with it than contradict it."""

NEAR = 1.3
"""Within this factor of a rate beyond capacity, longer runs are needed to tell."""

LARGEST_STEP = 16.0
SAME = 1.001
"""Rates within this factor are no two opinions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome at one rate. low, high: 95 % interval of `attainment.both`. stable: False beyond capacity.
    over_context: requests longer than the model's context, which pods would refuse.
    """

    rate: float
    requests: int
    attainment: Attainment
    low: float
    high: float
    stable: bool = True
    over_context: int = 0

    def passes(self, target: float) -> bool:
        """Whether this rate meets the target."""
        return self.stable and self.attainment.both >= target

    def unsure(self, target: float) -> bool:
        """Whether the target lies inside the interval."""
        return self.stable and self.low < target <= self.high


Evaluate = Callable[[float, int], Trial]
"""(requests a second, number of requests) → what happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How to search.

    target: share of requests that must meet both objectives. tolerance: of the rate, relative. start: a first guess,
    requests a second. requests: of a trial; near the knee `growth` times as many.
    """

    target: float = DEFAULT_TARGET
    tolerance: float = DEFAULT_TOLERANCE
    start: float = 1.0
    requests: int = 3000
    growth: int = DEFAULT_GROWTH

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise OptionError(field="target", value=self.target, wanted="above 0 and at most 1")
        if not 0 < self.tolerance < 1:
            raise OptionError(field="tolerance", value=self.tolerance, wanted="above 0 and below 1")
        if not (isfinite(self.start) and self.start > 0):
            raise OptionError(field="start", value=self.start, wanted="a finite number above 0")
        if self.requests < 1:
            raise OptionError(field="requests", value=self.requests, wanted="at least 1")
        if self.growth < 1:
            raise OptionError(field="growth", value=self.growth, wanted="at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The answer. `best` is the trial at the goodput; None where not even the lowest rate passes (`infeasible`).

    low, high: the rates between which the knee lies for sure (95 %): the highest one that passes beyond doubt, and the
    lowest that fails beyond doubt (infinity: none was found). nearest: the best trial of an infeasible search.
    trials: all that were made, in ascending order of rate.
    """

    search: Search
    best: Trial | None
    nearest: Trial
    low: float
    high: float
    evaluations: int
    trials: tuple[Trial, ...]

    @property
    def requests_per_second(self) -> float:
        """The goodput; 0 where it is infeasible."""
        return 0.0 if self.best is None else self.best.rate

    @property
    def unbounded(self) -> bool:
        """Whether no rate was too high: the trials are too short to tell, or nothing is asked of the deployment."""
        return self.best is not None and self.best.rate >= HIGHEST_RATE

    @property
    def infeasible(self) -> bool:
        """Whether no rate at all meets the objectives."""
        return self.best is None


def find_goodput(evaluate: Evaluate, search: Search | None = None) -> Goodput:
    """Search the goodput. Calls `evaluate` a few dozen times at most."""
    return _Searcher(evaluate, search or Search()).run()


class _Searcher:
    def __init__(self, evaluate: Evaluate, search: Search) -> None:
        self._evaluate = evaluate
        self._search = search
        self._requests = search.requests
        self._most = search.requests * search.growth
        self._trials: dict[float, Trial] = {}
        self._asked: dict[float, int] = {}
        self.evaluations = 0

    def run(self) -> Goodput:
        search = self._search
        trial = self._try(search.start)
        if not trial.passes(search.target) and not self._try(LOWEST_RATE).passes(search.target):
            return self._answer(None)
        lower = None
        while self.evaluations < MOST_EVALUATIONS:
            lower, upper = self._knee()
            rate = self._next(lower, upper)
            if rate is None:
                break
            if rate in self._trials:
                if self._asked[rate] >= self._most:
                    break
                self._requests = self._most
            self._try(rate)
        return self._answer(lower)

    def _try(self, rate: float) -> Trial:
        target = self._search.target
        trial = self._once(rate)
        if trial.unsure(target) and self._asked[rate] < self._most:
            self._requests = self._most
            trial = self._once(rate)
        self._trials[rate] = trial
        return trial

    def _once(self, rate: float) -> Trial:
        self.evaluations += 1
        self._asked[rate] = self._requests
        return replace(self._evaluate(rate, self._requests), rate=rate)

    def _sorted(self) -> list[Trial]:
        return [self._trials[rate] for rate in sorted(self._trials)]

    def _knee(self) -> tuple[Trial | None, Trial | None]:
        """The trials next to the knee: the one below it that passes and the one above it that fails.

        The knee has the fewest trials on the wrong side; of several such places it is the highest, since going on
        there brings the evidence that settles it.
        """
        trials = self._sorted()
        passes = [trial.passes(self._search.target) for trial in trials]
        wrong = sum(passes)
        best, place = wrong, 0
        for number, passed in enumerate(passes, start=1):
            wrong += -1 if passed else 1
            if wrong <= best and passed:
                best, place = wrong, number
        lower = next((t for t, ok in zip(reversed(trials[:place]), reversed(passes[:place]), strict=True) if ok), None)
        upper = next((t for t, ok in zip(trials[place:], passes[place:], strict=True) if not ok), None)
        return lower, upper

    def _next(self, lower: Trial | None, upper: Trial | None) -> float | None:
        """The next rate to try, None when the search is over."""
        if upper is None:
            highest = max(self._trials)
            return None if highest >= HIGHEST_RATE else min(HIGHEST_RATE, highest * self._step(highest))
        if lower is None or (lower.rate == LOWEST_RATE and upper.rate > LARGEST_STEP * LOWEST_RATE):
            return max(LOWEST_RATE, upper.rate / self._step(upper.rate))
        if not upper.stable and upper.rate < lower.rate * NEAR:
            self._requests = self._most  # How much is too much shows in long runs.
        if upper.rate > lower.rate * (1 + self._search.tolerance):
            return sqrt(lower.rate * upper.rate)
        return self._confirmation(lower, upper)

    def _step(self, rate: float) -> float:
        """How far to step beyond a rate without a bracket: the further from the start, the more."""
        away = max(rate / self._search.start, self._search.start / rate)
        return 2.0 if away <= 2 else 4.0 if away <= 100 else LARGEST_STEP

    def _confirmation(self, lower: Trial, upper: Trial) -> float | None:
        """A rate at which a further trial must agree with the bracket, while one side has too few that do."""
        target = self._search.target
        trials = self._sorted()
        if self._asked[lower.rate] < self._requests:
            return lower.rate  # What passed in a short run may fail in a long one, such as its neighbours'.
        for factor, agreeing in CONFIRMATION:
            below = [t for t in trials if lower.rate / factor <= t.rate <= lower.rate]
            above = [t for t in trials if upper.rate <= t.rate <= upper.rate * factor]
            wrong = [t for t in below if not t.passes(target)] + [t for t in above if t.passes(target)]
            again = next((trial.rate for trial in wrong if self._asked[trial.rate] < self._most), None)
            if again is not None:
                return again
            if len(below) - 2 * sum(not t.passes(target) for t in below) < agreeing:
                return _gap([max(LOWEST_RATE, lower.rate / factor), *(t.rate for t in below)])
            if len(above) - 2 * sum(t.passes(target) for t in above) < agreeing:
                return _gap([*(t.rate for t in above), min(HIGHEST_RATE, upper.rate * factor)])
        return None

    def _answer(self, best: Trial | None) -> Goodput:
        trials = self._sorted()
        target = self._search.target
        sure = [trial.rate for trial in trials if trial.stable and trial.low >= target]
        lost = [trial.rate for trial in trials if not trial.stable or trial.high < target]
        rate = best.rate if best else 0.0
        return Goodput(
            search=self._search,
            best=best,
            nearest=max(trials, key=lambda trial: (trial.stable, trial.attainment.both, trial.rate)),
            low=max((low for low in sure if low <= rate), default=0.0),
            high=min((high for high in lost if high > rate), default=float("inf")),
            evaluations=self.evaluations,
            trials=tuple(trials),
        )


def _gap(rates: list[float]) -> float | None:
    """The middle of the widest gap between ascending rates; None where there is none to speak of."""
    ratio, low = max((high / low, low) for low, high in pairwise(rates))
    return low * sqrt(ratio) if ratio > SAME else None
