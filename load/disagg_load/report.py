"""From records to the figures that people compare: latencies, attainment, good requests/s.

Every request that was sent and not interrupted is counted. Errors, truncated answers and requests that the client
itself sent late are misses of every SLO, whatever their latencies were: leaving them out would reward a server for
dropping its slowest requests. A complete answer of one token has no TPOT and meets it. Latency statistics are over
requests with a first token that are not errors, the mean being the mean of exactly that list.

`Report.to_json` is a contract: other programs read these names. Absent figures are null, never 0 or NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import fsum
from typing import Any

import numpy as np

from .errors import WorkloadError
from .records import Outcome, RequestRecord

SCHEMA = "disagg.dev/replay/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The service level objectives a request is held to, in seconds."""

    ttft_seconds: float
    tpot_seconds: float

    def __post_init__(self) -> None:
        for name in ("ttft_seconds", "tpot_seconds"):
            if not getattr(self, name) > 0:
                raise WorkloadError(f"the objective {name} is {getattr(self, name)!r}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and percentiles of a list of seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution | None:
        """The distribution of `values`, or None where there are none."""
        data = np.fromiter(values, dtype=np.float64)
        if not data.size:
            return None
        p50, p90, p99 = np.percentile(data, (50, 90, 99)).tolist()
        return cls(mean=fsum(data) / data.size, p50=p50, p90=p90, p99=p99, max=float(data.max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """Shares (0 to 1) of the counted requests that met the TTFT SLO, the TPOT SLO, and both."""

    ttft: float
    tpot: float
    both: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFacts:
    """How the records came about; copied into the report."""

    trace: str
    url: str
    model: str
    seed: int
    rate_scale: float
    time_scale: float
    planned: int
    interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a replay. Times are modelled seconds (the client's seconds x time scale).

    `requests` = `completed` + `truncated` + the sum of `errors` + `unfinished`. `duration_seconds` runs from the first
    dispatch to the end of the last request; rates are per that second. `requests_over_context`, of simulated replays
    alone, counts what pods would refuse for being longer than the model's context; a real server's refusals are errors.
    """

    facts: ReplayFacts
    slo: Slo
    requests: int
    completed: int
    truncated: int
    unfinished: int
    late: int
    errors: dict[str, int]
    first_error: str
    duration_seconds: float
    offered_requests_per_second: float | None
    throughput_requests_per_second: float | None
    throughput_tokens_per_second: float | None
    good_requests: int
    good_requests_per_second: float | None
    input_tokens: int
    output_tokens: int
    ttft_seconds: Distribution | None
    tpot_seconds: Distribution | None
    tbt_seconds: Distribution | None
    e2e_seconds: Distribution | None
    attainment: Attainment | None
    records: tuple[RequestRecord, ...]
    requests_over_context: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, with a short form of each record."""

        def shown(value: Distribution | Attainment | None) -> dict[str, float] | None:
            return None if value is None else asdict(value)

        return {
            "schema": SCHEMA,
            **asdict(self.facts),
            "slo": asdict(self.slo),
            "requests": self.requests,
            "completed": self.completed,
            "truncated": self.truncated,
            "unfinished": self.unfinished,
            "late": self.late,
            "errors": sum(self.errors.values()),
            "errors_by_kind": self.errors,
            "first_error": self.first_error or None,
            "requests_over_context": self.requests_over_context,
            "duration_seconds": self.duration_seconds,
            "offered_requests_per_second": self.offered_requests_per_second,
            "throughput_requests_per_second": self.throughput_requests_per_second,
            "throughput_tokens_per_second": self.throughput_tokens_per_second,
            "good_requests": self.good_requests,
            "good_requests_per_second": self.good_requests_per_second,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "ttft_seconds": shown(self.ttft_seconds),
            "tpot_seconds": shown(self.tpot_seconds),
            "tbt_seconds": shown(self.tbt_seconds),
            "e2e_seconds": shown(self.e2e_seconds),
            "attainment": shown(self.attainment),
            "per_request": [_record_to_json(record) for record in self.records],
        }


def _record_to_json(record: RequestRecord) -> dict[str, Any]:
    return {
        "index": record.index,
        "outcome": record.outcome.value,
        "late": record.late,
        "scheduled_seconds": record.scheduled_seconds,
        "sent_seconds": record.sent_seconds,
        "finished_seconds": record.finished_seconds,
        "input_tokens": record.input_tokens,
        "asked_tokens": record.asked_tokens,
        "output_tokens": record.tokens,
        "ttft_seconds": record.ttft_seconds,
        "tpot_seconds": record.tpot_seconds,
        "message": record.message or None,
    }


def meets(record: RequestRecord, slo: Slo) -> tuple[bool, bool]:
    """Whether a record meets the TTFT SLO and the TPOT SLO."""
    ttft, tpot = record.ttft_seconds, record.tpot_seconds
    if record.outcome is not Outcome.COMPLETED or record.late or ttft is None:
        return False, False
    return ttft <= slo.ttft_seconds, tpot is None or tpot <= slo.tpot_seconds


def build_report(records: Sequence[RequestRecord], *, slo: Slo, facts: ReplayFacts) -> Report:
    """The report of the records of one replay, in modelled seconds, in any order."""
    ordered = sorted(records, key=lambda record: record.index)
    counted = [record for record in ordered if record.outcome is not Outcome.UNFINISHED]
    answered = [record for record in counted if not record.outcome.is_error]
    errors = Counter(record.outcome.value for record in counted if record.outcome.is_error)
    verdicts = [meets(record, slo) for record in counted]
    good = sum(ttft and tpot for ttft, tpot in verdicts)
    start = min((record.sent_seconds for record in ordered), default=0.0)
    duration = max((record.finished_seconds for record in ordered), default=0.0) - start
    span = max((record.scheduled_seconds for record in ordered), default=0.0)
    output_tokens = sum(record.tokens for record in ordered)
    served = [record for record in answered if record.ttft_seconds is not None]

    def per_second(count: int, seconds: float = duration) -> float | None:
        return count / seconds if seconds > 0 else None

    return Report(
        facts=facts,
        slo=slo,
        requests=len(ordered),
        completed=sum(record.outcome is Outcome.COMPLETED for record in ordered),
        truncated=sum(record.outcome is Outcome.TRUNCATED for record in ordered),
        unfinished=len(ordered) - len(counted),
        late=sum(record.late for record in ordered),
        errors=dict(sorted(errors.items())),
        first_error=next((record.message for record in counted if record.message), ""),
        duration_seconds=duration,
        offered_requests_per_second=per_second(len(ordered), span),
        throughput_requests_per_second=per_second(len(answered)),
        throughput_tokens_per_second=per_second(output_tokens),
        good_requests=good,
        good_requests_per_second=per_second(good),
        input_tokens=sum(record.input_tokens for record in ordered),
        output_tokens=output_tokens,
        ttft_seconds=Distribution.of(record.ttft_seconds for record in served if record.ttft_seconds is not None),
        tpot_seconds=Distribution.of(record.tpot_seconds for record in served if record.tpot_seconds is not None),
        tbt_seconds=Distribution.of(chain.from_iterable(record.gaps_seconds for record in served)),
        e2e_seconds=Distribution.of(record.finished_seconds - record.sent_seconds for record in served),
        attainment=Attainment(
            ttft=sum(ttft for ttft, _ in verdicts) / len(verdicts),
            tpot=sum(tpot for _, tpot in verdicts) / len(verdicts),
            both=good / len(verdicts),
        )
        if verdicts
        else None,
        records=tuple(ordered),
    )
