"""The named loads: `builtin:NAME?option=value&option=value`.

A `Recipe` is data: mean rate, inter-arrival shape and lengths of a named load. Options change it, `generate` draws
requests from it. The three applications are those that DistServe (Zhong et al., OSDI 2024, table 1) measures; their
mean lengths are published and the shape is a choice: lognormal with sigma 0.4 unless `lengths=fixed` is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import isfinite
from urllib.parse import parse_qsl

from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_load.requests import BUILTIN_PREFIX, Workload

from . import measured
from .arrivals import Arrivals, EmpiricalArrivals, GammaArrivals, PoissonArrivals, TickedArrivals
from .drawing import draw
from .lengths import EmpiricalLengths, FixedLengths, Lengths, LognormalLengths
from .prefixes import PrefixChains
from .quantiles import QuantileTable

DEFAULT_SECONDS = 60.0
DEFAULT_SIGMA = 0.4


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a named load is made: what `rate` arrivals look like, and the two lengths in tokens."""

    summary: str
    rate: float
    input_tokens: float
    output_tokens: float
    arrivals: Callable[[float], Arrivals] = PoissonArrivals
    input_table: QuantileTable | None = None
    output_table: QuantileTable | None = None
    conversations: bool = False


def _conv_arrivals(rate: float) -> Arrivals:
    return GammaArrivals(rate, cv=1.1)


def _code_arrivals(rate: float) -> Arrivals:
    return EmpiricalArrivals(rate, measured.AZURE_CODE_GAPS_SECONDS)


def _mooncake_arrivals(rate: float) -> Arrivals:
    return TickedArrivals(rate, tick_seconds=3.0)


RECIPES: dict[str, Recipe] = {
    "chat": Recipe(summary="chat, the mean lengths of ShareGPT", rate=2.0, input_tokens=755, output_tokens=200),
    "code": Recipe(
        summary="code completion, the mean lengths of HumanEval", rate=4.0, input_tokens=171, output_tokens=98
    ),
    "summarisation": Recipe(
        summary="summarisation, the mean lengths of LongBench", rate=0.5, input_tokens=1738, output_tokens=91
    ),
    "azure-conv": Recipe(
        summary="the statistics of Azure's conversation trace (November 2023)",
        rate=5.53,
        input_tokens=1155,
        output_tokens=211,
        arrivals=_conv_arrivals,
        input_table=measured.AZURE_CONV_INPUT,
        output_table=measured.AZURE_CONV_OUTPUT,
    ),
    "azure-code": Recipe(
        summary="the statistics of Azure's code trace: short answers, long bursts",
        rate=2.57,
        input_tokens=2048,
        output_tokens=28,
        arrivals=_code_arrivals,
        input_table=measured.AZURE_CODE_INPUT,
        output_table=measured.AZURE_CODE_OUTPUT,
    ),
    "mooncake": Recipe(
        summary="the statistics of Mooncake's conversation trace: long prompts with shared prefixes",
        rate=3.4,
        input_tokens=12035,
        output_tokens=343,
        arrivals=_mooncake_arrivals,
        input_table=measured.MOONCAKE_INPUT,
        output_table=measured.MOONCAKE_OUTPUT,
        conversations=True,
    ),
}

OPTIONS: dict[str, str] = {
    "rate": "mean requests/s",
    "seconds": f"length of the load (default {DEFAULT_SECONDS:g})",
    "requests": "number of requests, instead of seconds",
    "lengths": "fixed, lognormal or lognormal:SIGMA; the loads that copy a trace have its lengths by default",
    "input": "mean prompt length in tokens",
    "output": "mean answer length in tokens",
    "cv": "burstiness of the arrivals: CV of their gaps, 1 is Poisson",
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """A recipe with its options applied: everything that `generate` draws from, and how long the load is."""

    name: str
    arrivals: Arrivals
    input_lengths: Lengths
    output_lengths: Lengths
    conversations: bool
    seconds: float
    requests: int | None


def parse_load(spec: str) -> Load:
    """The load of `builtin:NAME?option=value&...` (the `builtin:` may be left out).

    Raises `WorkloadError` that lists the known names, options or values.
    """
    name, _, query = spec.removeprefix(BUILTIN_PREFIX).partition("?")
    recipe = RECIPES.get(name)
    if recipe is None:
        near = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise WorkloadError(f"no built-in load is called {name!r}; {hint}known are {', '.join(RECIPES)}")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise WorkloadError(f"{query!r} in {spec!r} is not a list of options like rate=3&seconds=60") from None
    options = dict(pairs)
    for option in options:
        if option not in OPTIONS:
            raise WorkloadError(f"unknown option {option!r} in {spec!r}; known are {', '.join(OPTIONS)}")
    if "seconds" in options and "requests" in options:
        raise WorkloadError(f"both seconds and requests are given in {spec!r}, one is needed")
    recipe = replace(
        recipe,
        rate=_number(options, "rate", recipe.rate),
        input_table=None if "input" in options else recipe.input_table,
        output_table=None if "output" in options else recipe.output_table,
        input_tokens=_number(options, "input", recipe.input_tokens),
        output_tokens=_number(options, "output", recipe.output_tokens),
    )
    requests = _number(options, "requests", 0)
    if requests != int(requests):
        raise WorkloadError(f"requests is {options['requests']}, a whole number is needed")
    cv = _number(options, "cv", 0)
    return Load(
        name=BUILTIN_PREFIX + spec.removeprefix(BUILTIN_PREFIX),
        arrivals=GammaArrivals(recipe.rate, cv) if cv else recipe.arrivals(recipe.rate),
        input_lengths=_lengths(options.get("lengths"), recipe.input_tokens, recipe.input_table),
        output_lengths=_lengths(options.get("lengths"), recipe.output_tokens, recipe.output_table),
        conversations=recipe.conversations,
        seconds=_number(options, "seconds", DEFAULT_SECONDS),
        requests=int(requests) or None,
    )


def _number(options: dict[str, str], name: str, default: float) -> float:
    if name not in options:
        return default
    try:
        value = float(options[name])
    except ValueError:
        raise WorkloadError(f"{name} is {options[name]!r}, a number is needed") from None
    if not (isfinite(value) and value > 0):
        raise WorkloadError(f"{name} is {options[name]}, a number above 0 is needed")
    return value


def _lengths(shape: str | None, mean_tokens: float, table: QuantileTable | None) -> Lengths:
    kind, _, sigma = (shape or "").partition(":")
    if kind == "fixed" and not sigma:
        return FixedLengths(round(mean_tokens))
    if kind == "lognormal":
        options = {"the sigma of lengths": sigma} if sigma else {}
        return LognormalLengths(mean_tokens, _number(options, "the sigma of lengths", DEFAULT_SIGMA))
    if shape is not None:
        raise WorkloadError(f"lengths is {shape!r}; known are fixed, lognormal and lognormal:SIGMA")
    return LognormalLengths(mean_tokens, DEFAULT_SIGMA) if table is None else EmpiricalLengths(table)


def builtin_columns(spec: str, *, seed: int, limit: int | None = None) -> Columns:
    """The requests of `builtin:NAME?...` as columns, at most `limit` of them. Raises `WorkloadError`."""
    load = parse_load(spec)
    bounds = [bound for bound in (load.requests, limit) if bound is not None]
    chains = PrefixChains(continued=0.5, shared_share=measured.MOONCAKE_SHARED_SHARE).chains
    return draw(
        load.arrivals,
        load.input_lengths,
        load.output_lengths,
        seed=seed,
        requests=min(bounds, default=None),
        seconds=load.seconds if load.requests is None else None,
        name=load.name,
        chains=chains if load.conversations else None,
    )


def builtin_workload(spec: str, *, seed: int, limit: int | None = None) -> Workload:
    """The same requests as objects."""
    return builtin_columns(spec, seed=seed, limit=limit).workload()
