"""The named loads: `builtin:NAME?option=value&option=value`.

A `Recipe` is data: mean rate, inter-arrival shape and lengths of a named load. Options change it, `builtin_columns`
draws requests from it. The three applications are those that DistServe (Zhong et al., OSDI 2024, table 1) measures;
their mean lengths are published and the shape is a choice: lognormal with sigma 0.4 unless `lengths=fixed` is asked
for. `six-hours` is a load for planners: two cycles of three hours with noise, a burst, and an hour of longer prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from urllib.parse import parse_qsl

from disagg_load.columns import Columns
from disagg_load.errors import WorkloadError
from disagg_load.requests import BUILTIN_PREFIX, Workload

from . import measured
from .arrivals import Arrivals, EmpiricalArrivals, GammaArrivals, PoissonArrivals, TickedArrivals
from .curves import Curve, CurveArrivals, Cycle, Noise, Product, burst
from .drawing import draw
from .lengths import EmpiricalLengths, FixedLengths, Lengths, LognormalLengths, Phase, PhasedLengths
from .options import curve, number, whole
from .prefixes import PrefixChains
from .quantiles import QuantileTable
from .sessions import Sessions, draw_sessions

DEFAULT_SECONDS = 60.0
DEFAULT_SIGMA = 0.4
_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a named load is made: what `rate` arrivals look like, and the two lengths in tokens.

    `curve` is what the rate follows. `input_phases` are times (start and end in seconds) at which inputs are longer by
    a factor. `prefixes` or `sessions` say how prompts share prefixes; with `sessions`, inputs are users' messages.
    `seconds` is the length of a load that has one of its own.
    """

    summary: str
    rate: float
    input_tokens: float
    output_tokens: float
    arrivals: Callable[[float], Arrivals] = PoissonArrivals
    curve: Curve | None = None
    input_table: QuantileTable | None = None
    output_table: QuantileTable | None = None
    input_phases: tuple[tuple[float, float, float], ...] = ()
    least_output_tokens: int = 1
    prefixes: PrefixChains | None = None
    sessions: Sessions | None = None
    seconds: float | None = None


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
        prefixes=PrefixChains(
            continued=0.555,
            shared_share=measured.MOONCAKE_SHARED_SHARE,
            requests_back=measured.MOONCAKE_REQUESTS_BACK,
        ),
    ),
    "sessions": Recipe(
        summary="conversations of several turns, on system prompts that many of them share",
        rate=2.0,
        input_tokens=200,
        output_tokens=200,
        sessions=Sessions(),
    ),
    "six-hours": Recipe(
        summary="six hours: two cycles, noise, a burst, an hour of longer prompts",
        rate=45.0,
        input_tokens=1000,
        output_tokens=200,
        curve=Product((Cycle(35 / 45, 3 * _HOUR), Noise(0.04), burst(2, 13 / 3 * _HOUR, 29 / 6 * _HOUR, 8 * 60.0))),
        input_phases=((2.5 * _HOUR, 3.5 * _HOUR, 2.0),),
        least_output_tokens=2,
        seconds=6 * _HOUR,
    ),
}

_MEANINGS = {
    "rate": "mean requests/s",
    "seconds": f"length of the load (default {DEFAULT_SECONDS:g}; six-hours: all of them)",
    "requests": "number of requests, instead of seconds",
    "lengths": "fixed, lognormal or lognormal:SIGMA; the loads that copy a trace have its lengths by default",
    "input": "mean prompt length in tokens (sessions: mean length of a user's message)",
    "output": "mean answer length in tokens",
    "cv": "burstiness of the arrivals: CV of their gaps, 1 is Poisson",
    "cycle": "AMPLITUDE:PERIOD of a cycle, as in 0.5:3h",
    "burst": "FACTOR:START:END[:RAMP], as in 2:4h20m:4h50m:8m",
    "ramp": "FACTOR:START:END, a lasting rise, as in 3:10m:20m",
    "steps": "START:FACTOR,... of the rate, as in 10m:2,20m:1",
    "noise": "SIGMA of the rate's wandering, a step a minute",
    "apps": "number of apps, each with a system prompt",
    "system": "tokens of a system prompt",
    "sessions": "conversations under way at a time",
    "think": "mean seconds between two turns, instead of how many conversations there are",
    "turns": "mean turns of a conversation",
    "longest": "tokens of the longest prompt; a conversation that gets there ends",
    "block": "tokens of a block that hash ids stand for",
}


def _has_plain_gaps(recipe: Recipe) -> bool:
    return recipe.curve is None


def _is_poisson(recipe: Recipe) -> bool:
    return recipe.arrivals is PoissonArrivals


def _has_sessions(recipe: Recipe) -> bool:
    return recipe.sessions is not None


_CURVES = ("cycle", "burst", "ramp", "steps", "noise")
_SESSIONS = ("apps", "system", "sessions", "think", "turns", "longest", "block")
_APPLIES: dict[str, Callable[[Recipe], bool]] = {
    "cv": _has_plain_gaps,
    **dict.fromkeys(_CURVES, _is_poisson),
    **dict.fromkeys(_SESSIONS, _has_sessions),
}
"""Options that not every load has, and which loads do."""


def _applies(option: str, recipe: Recipe) -> bool:
    return _APPLIES.get(option, bool)(recipe)


def _where(option: str) -> str:
    """Which loads have an option, for those that not all have."""
    have = [name for name, recipe in RECIPES.items() if _applies(option, recipe)]
    lack = [name for name in RECIPES if name not in have]
    if not lack:
        return ""
    return f" ({', '.join(have)} only)" if len(have) < len(lack) else f" (not {', '.join(lack)})"


OPTIONS: dict[str, str] = {option: meaning + _where(option) for option, meaning in _MEANINGS.items()}
"""What can follow the name of a load, and what each option means."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """A recipe with its options applied: everything that is drawn from, and how long the load is."""

    name: str
    arrivals: Arrivals
    input_lengths: Lengths
    output_lengths: Lengths
    prefixes: PrefixChains | None
    sessions: Sessions | None
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
    for option in options:
        if not _applies(option, recipe):
            known = [known for known in OPTIONS if _applies(known, recipe)]
            raise WorkloadError(f"{option} in {spec!r} does not apply to {name}, whose options are {', '.join(known)}")
    for one, other in (("seconds", "requests"), ("sessions", "think"), *(("cv", name) for name in _CURVES)):
        if one in options and other in options:
            raise WorkloadError(f"both {one} and {other} are given in {spec!r}, one is needed")
    recipe = replace(
        recipe,
        rate=number(options, "rate", recipe.rate),
        input_table=None if "input" in options else recipe.input_table,
        output_table=None if "output" in options else recipe.output_table,
        input_tokens=number(options, "input", recipe.input_tokens),
        output_tokens=number(options, "output", recipe.output_tokens),
    )
    shape = options.get("lengths")
    inputs = _lengths(shape, recipe.input_tokens, recipe.input_table)
    phases = tuple(
        Phase(start, end, _lengths(shape, factor * recipe.input_tokens, recipe.input_table))
        for start, end, factor in recipe.input_phases
    )
    return Load(
        name=BUILTIN_PREFIX + spec.removeprefix(BUILTIN_PREFIX),
        arrivals=_arrivals(recipe, options),
        input_lengths=PhasedLengths(inputs, phases) if phases else inputs,
        output_lengths=_lengths(shape, recipe.output_tokens, recipe.output_table, least=recipe.least_output_tokens),
        prefixes=recipe.prefixes,
        sessions=None if recipe.sessions is None else _sessions(recipe.sessions, recipe.rate, options),
        seconds=number(options, "seconds", recipe.seconds or DEFAULT_SECONDS),
        requests=whole(options, "requests", 0) or None,
    )


def _arrivals(recipe: Recipe, options: dict[str, str]) -> Arrivals:
    asked = curve(options)
    curves = tuple(found for found in (recipe.curve, asked) if found is not None)
    if curves:
        return CurveArrivals(recipe.rate, Product(curves))
    cv = number(options, "cv", 0)
    return GammaArrivals(recipe.rate, cv) if cv else recipe.arrivals(recipe.rate)


def _lengths(shape: str | None, mean_tokens: float, table: QuantileTable | None, *, least: int = 1) -> Lengths:
    kind, _, sigma = (shape or "").partition(":")
    if kind == "fixed" and not sigma:
        return FixedLengths(round(mean_tokens))
    if kind == "lognormal":
        options = {"the sigma of lengths": sigma} if sigma else {}
        return LognormalLengths(mean_tokens, number(options, "the sigma of lengths", DEFAULT_SIGMA), least)
    if shape is not None:
        raise WorkloadError(f"lengths is {shape!r}; known are fixed, lognormal and lognormal:SIGMA")
    return LognormalLengths(mean_tokens, DEFAULT_SIGMA, least) if table is None else EmpiricalLengths(table)


def _sessions(usual: Sessions, rate: float, options: dict[str, str]) -> Sessions:
    count = whole(options, "sessions", usual.sessions)
    if "think" in options:
        count = max(1, round(rate * number(options, "think", 0)))
    return Sessions(
        apps=whole(options, "apps", usual.apps),
        system_tokens=whole(options, "system", usual.system_tokens),
        sessions=count,
        turns=number(options, "turns", usual.turns),
        longest_tokens=whole(options, "longest", usual.longest_tokens),
        block_tokens=whole(options, "block", usual.block_tokens),
    )


def builtin_columns(spec: str, *, seed: int, limit: int | None = None) -> Columns:
    """The requests of `builtin:NAME?...` as columns, at most `limit` of them. Raises `WorkloadError`."""
    load = parse_load(spec)
    bounds = [bound for bound in (load.requests, limit) if bound is not None]
    requests = min(bounds, default=None)
    seconds = load.seconds if load.requests is None else None
    arrivals, inputs, outputs = load.arrivals, load.input_lengths, load.output_lengths
    if load.sessions is not None:
        return draw_sessions(
            arrivals, load.sessions, inputs, outputs, seed=seed, requests=requests, seconds=seconds, name=load.name
        )
    chains = None if load.prefixes is None else load.prefixes.chains
    return draw(arrivals, inputs, outputs, seed=seed, requests=requests, seconds=seconds, name=load.name, chains=chains)


def builtin_workload(spec: str, *, seed: int, limit: int | None = None) -> Workload:
    """The same requests as objects."""
    return builtin_columns(spec, seed=seed, limit=limit).workload()
