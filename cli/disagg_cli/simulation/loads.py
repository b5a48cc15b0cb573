"""From flags to requests.

A search needs the same requests at many rates. Loads are drawn from streams of random numbers that a rate only
stretches, and traces are stretched themselves, so `disagg simulate` at the rate that `disagg goodput` found repeats its
last trial.
"""

from __future__ import annotations

import argparse
from functools import cache, partial
from urllib.parse import parse_qsl, urlencode

from disagg_cli.errors import UsageError
from disagg_cli.simulation.options import DECODE_REQUESTS, DEFAULT_REQUESTS
from disagg_load.columns import Columns
from disagg_load.errors import LoadError
from disagg_load.requests import BUILTIN_PREFIX
from disagg_load.shell.files import load_columns
from disagg_load.workloads.arrivals import GammaArrivals, PoissonArrivals
from disagg_load.workloads.builtin import DEFAULT_SIGMA, RECIPES, builtin_columns, parse_load
from disagg_load.workloads.curves import CurveArrivals
from disagg_load.workloads.drawing import draw
from disagg_load.workloads.lengths import FixedLengths, Lengths, LognormalLengths
from disagg_simulator.deployment import Mode
from disagg_simulator.trials import Source, at_unit_rate


def requests_of(arguments: argparse.Namespace, mode: Mode) -> int:
    """How many requests to simulate where neither a trace nor the load itself says."""
    if arguments.requests:
        return int(arguments.requests)
    return DECODE_REQUESTS if mode is Mode.DECODE_ONLY else DEFAULT_REQUESTS


def build_load(arguments: argparse.Namespace, mode: Mode) -> Columns:
    """The requests of a command line with a rate. Raises `UsageError`."""
    _check(arguments)
    for flag in ("rate", "burstiness"):
        if getattr(arguments, "concurrency", None) and getattr(arguments, flag) is not None:
            raise UsageError(f"--{flag} is about when requests arrive; with --concurrency they come when one ends")
    try:
        if arguments.trace:
            columns = _trace(arguments)
            return columns if arguments.rate is None else at_unit_rate(columns).at_rate(arguments.rate)
        count = requests_of(arguments, mode)
        if arguments.workload:
            own = None if arguments.requests is None and _has_a_length(arguments.workload) else count
            return builtin_columns(_spec(arguments, arguments.rate, own), seed=arguments.seed)
        if arguments.rate is None and not arguments.concurrency:
            raise UsageError("--input and --output need a --rate, or a --concurrency")
        return _drawn(arguments, count).at_rate(arguments.rate or 1.0)
    except LoadError as error:
        raise UsageError(str(error)) from None


def build_source(arguments: argparse.Namespace) -> Source:
    """The requests of a command line at any rate, as many as are asked for. Raises `UsageError`."""
    _check(arguments)
    try:
        if arguments.trace:
            trace = at_unit_rate(_trace(arguments))
            return lambda rate, count: trace.first(count).at_rate(rate)
        if arguments.workload:
            if isinstance(parse_load(_spec(arguments, 1.0, 1)).arrivals, CurveArrivals):
                raise UsageError(
                    f"--workload is {arguments.workload}, whose rate changes with time; a search needs a steady one"
                )
            return lambda rate, count: builtin_columns(_spec(arguments, rate, count), seed=arguments.seed)
        drawn = cache(partial(_drawn, arguments))
        drawn(1)
        return lambda rate, count: drawn(count).at_rate(rate)
    except LoadError as error:
        raise UsageError(str(error)) from None


def _has_a_length(workload: str) -> bool:
    """Whether a named load says itself how long it is."""
    recipe = RECIPES.get(workload.removeprefix(BUILTIN_PREFIX).partition("?")[0])
    return recipe is not None and recipe.seconds is not None


def _check(arguments: argparse.Namespace) -> None:
    lengths = arguments.input is not None or arguments.output is not None
    given = [
        name
        for name, there in (
            ("--trace", arguments.trace is not None),
            ("--workload", arguments.workload is not None),
            ("--input and --output", lengths and arguments.workload is None),
        )
        if there
    ]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        raise UsageError(f"a load is --input N --output N, --workload NAME or --trace FILE; {found}")
    if given[0].startswith("--input") and (arguments.input is None or arguments.output is None):
        missing = "--input" if arguments.input is None else "--output"
        raise UsageError(f"{missing} is missing: a request has a prompt and an answer")
    if arguments.trace and (arguments.lengths or arguments.burstiness):
        flag = "--lengths" if arguments.lengths else "--burstiness"
        raise UsageError(f"{flag} is for loads that are drawn; a trace has its own")


def _trace(arguments: argparse.Namespace) -> Columns:
    columns = load_columns(arguments.trace, seed=arguments.seed, limit=arguments.requests)
    if not len(columns):
        raise UsageError(f"{arguments.trace} has no requests")
    return columns


def _spec(arguments: argparse.Namespace, rate: float | None, count: int | None) -> str:
    """The named load with what the flags say about it."""
    name, _, query = arguments.workload.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    flags = {
        "rate": None if rate is None else f"{rate!r}",
        "lengths": arguments.lengths,
        "input": arguments.input,
        "output": arguments.output,
        "cv": arguments.burstiness,
    }
    options.update({key: str(value) for key, value in flags.items() if value is not None})
    if count is not None and "seconds" not in options:
        options["requests"] = str(count)
    return f"{name}?{urlencode(options, safe=':')}" if options else str(name)


def _drawn(arguments: argparse.Namespace, count: int) -> Columns:
    """Requests of these lengths, one a second."""
    shape = arguments.lengths or "fixed"
    cv = arguments.burstiness
    process = "Poisson" if cv is None else f"gamma (CV {cv:g})"
    return draw(
        PoissonArrivals(1.0) if cv is None else GammaArrivals(1.0, cv),
        _lengths(shape, arguments.input),
        _lengths(shape, arguments.output),
        seed=arguments.seed,
        requests=count,
        name=f"{arguments.input}/{arguments.output} tokens, {shape}, {process}",
    )


def _lengths(shape: str, mean_tokens: int) -> Lengths:
    kind, _, sigma = shape.partition(":")
    if kind == "fixed" and not sigma:
        return FixedLengths(mean_tokens)
    if kind == "lognormal":
        try:
            return LognormalLengths(mean_tokens, float(sigma) if sigma else DEFAULT_SIGMA)
        except ValueError:
            raise UsageError(f"--lengths is {shape!r}; the sigma after lognormal: is a number") from None
    raise UsageError(f"--lengths is {shape!r}; known are fixed, lognormal and lognormal:SIGMA")
