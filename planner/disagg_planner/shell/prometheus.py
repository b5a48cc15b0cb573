"""Readings from a Prometheus server, over its HTTP API.

One instant query a signal, all at once; what a window means is in `queries`. A value comes as text and is parsed
defensively: `NaN`, `+Inf`, an empty string and `1e400` are kept as numbers that `observation` throws out, never turned
into a count. When the routers' series have no current sample at all, their age is infinite: increases over the window
may still be there, but they are the past's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from disagg_planner.core import signals
from disagg_planner.core.signals import Buckets, Problem, ProblemKind, Reading
from disagg_planner.shell import queries
from disagg_planner.shell.queries import Target
from disagg_planner.shell.sources import Past

Sample = tuple[Mapping[str, str], float]


class QueryError(Exception):
    """A query got no usable answer; the message says from where and why."""


class PrometheusSource:
    """Reads windows of `window_seconds` wall seconds. `timeout_seconds` bounds each query."""

    def __init__(
        self, *, url: str, target: Target, window_seconds: float, time_scale: float = 1.0, timeout_seconds: float = 10.0
    ) -> None:
        self._url = url.rstrip("/")
        self._target = target
        self._window_seconds = window_seconds
        self._time_scale = time_scale
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_seconds))

    async def start(self, now: float) -> None:
        """Nothing to prepare: the server remembers."""

    async def close(self) -> None:
        await self._session.close()

    async def read(self, now: float) -> Reading:
        window, target = self._window_seconds, self._target
        wanted = [queries.increase(target, signal, window) for signal in signals.SIGNALS]
        try:
            answers = await asyncio.gather(
                *(self._instant(query) for query in (*wanted, queries.age(target), queries.silent(target)))
            )
        except QueryError as error:
            problem = Problem(ProblemKind.UNREACHABLE, str(error))
            return Reading(at_seconds=now, window_seconds=window, problem=problem)
        *series, ages, silent = answers
        by_signal = dict(zip(signals.SIGNALS, series, strict=True))
        age = ages[0][1] if ages else math.inf
        return Reading(
            at_seconds=now,
            window_seconds=window,
            increases={signal.key: by_signal[signal][0][1] for signal in signals.SCALARS if by_signal[signal]},
            buckets={signal.key: _buckets(by_signal[signal]) for signal in signals.HISTOGRAMS},
            age_seconds=age,
            silent=tuple(sorted(_name(labels) for labels, _ in silent)),
        )

    async def history(self, now: float, intervals: int) -> Sequence[Past]:
        """Earlier windows; empty when the server cannot say."""
        window, target = self._window_seconds, self._target
        try:
            rates, inputs, outputs = await asyncio.gather(
                self._range(queries.rate_history(target, window, self._time_scale), now, intervals),
                self._range(
                    queries.mean_history(target, signals.INPUT_SUM, signals.INPUT_COUNT, window), now, intervals
                ),
                self._range(
                    queries.mean_history(target, signals.OUTPUT_SUM, signals.OUTPUT_COUNT, window), now, intervals
                ),
            )
        except QueryError:
            return ()
        return [
            Past(at_seconds=at, rate=rates.get(at), input_tokens=inputs.get(at), output_tokens=outputs.get(at))
            for at in sorted(rates)
        ]

    async def _instant(self, query: str) -> list[Sample]:
        result = await self._get("/api/v1/query", {"query": query})
        try:
            return [(item["metric"], parse_value(item["value"][1])) for item in result]
        except (KeyError, TypeError, IndexError) as error:
            raise QueryError(f"{self._url}: unexpected answer to {query}") from error

    async def _range(self, query: str, now: float, intervals: int) -> dict[float, float]:
        """Finite values by the planner's clock, one an interval, ending one interval before now."""
        end, step = time.time(), self._window_seconds
        parameters = {"start": f"{end - intervals * step:.3f}", "end": f"{end - step:.3f}", "step": f"{step:.3f}"}
        result = await self._get("/api/v1/query_range", {"query": query, **parameters})
        try:
            pairs = [(float(at), parse_value(text)) for item in result for at, text in item["values"]]
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(f"{self._url}: unexpected answer to {query}") from error
        return {now - round(end - at, 3): value for at, value in pairs if math.isfinite(value)}

    async def _get(self, path: str, parameters: Mapping[str, str]) -> list[Any]:
        try:
            async with self._session.get(self._url + path, params=parameters) as response:
                document = await response.json(content_type=None)
                if response.status != 200 or document["status"] != "success":
                    detail = document.get("error", "no reason given")
                    raise QueryError(f"{self._url} answered {response.status}: {detail}")
                result = document["data"]["result"]
                return list(result)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise QueryError(f"{self._url} cannot be asked: {error or type(error).__name__}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QueryError(f"{self._url}{path} gave no Prometheus answer; is this its URL?") from error


def parse_value(text: object) -> float:
    """A sample's number; NaN for what is none."""
    try:
        return float(str(text))
    except ValueError:
        return math.nan


def _buckets(samples: Sequence[Sample]) -> Buckets:
    pairs = sorted((parse_value(labels.get("le", "")), value) for labels, value in samples)
    return tuple(pair for pair in pairs if not math.isnan(pair[0]))


def _name(labels: Mapping[str, str]) -> str:
    return labels.get("pod") or labels.get("instance") or "a target without name"
