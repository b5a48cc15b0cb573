"""Flags that would change nothing: they are refused, so that nobody reads a result as if they had been at work.

A flag counts as given where its value is not the default (of the command: `defaults` of the arguments are those that
differ from the ones below). In a sweep over ratios a flag may be about some of the cells alone, and nothing is said.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from disagg_cli.errors import UsageError
from disagg_contract.config import BatchPolicy, Predictor, RoutingPolicy
from disagg_simulator.deployment import Mode, Sharing, Transfer

_Works = Callable[[argparse.Namespace, Mode], bool]


def _pair(arguments: argparse.Namespace, mode: Mode) -> bool:
    return mode is Mode.DISAGGREGATED


def _pulled(arguments: argparse.Namespace, mode: Mode) -> bool:
    return mode in (Mode.DISAGGREGATED, Mode.DECODE_ONLY)


def _prefills(arguments: argparse.Namespace, mode: Mode) -> bool:
    return mode in (Mode.DISAGGREGATED, Mode.PREFILL_ONLY)


def _decodes(arguments: argparse.Namespace, mode: Mode) -> bool:
    return mode is not Mode.PREFILL_ONLY


def _prompts(arguments: argparse.Namespace, mode: Mode) -> bool:
    return mode is not Mode.DECODE_ONLY


def _prefill_first(arguments: argparse.Namespace, mode: Mode) -> bool:
    return mode is Mode.COLOCATED and arguments.scheduler in (None, BatchPolicy.PREFILL_FIRST)


def _whole_prompts(arguments: argparse.Namespace, mode: Mode) -> bool:
    return _prefills(arguments, mode) or _prefill_first(arguments, mode)


def _by_prefixes(arguments: argparse.Namespace, mode: Mode) -> bool:
    return bool(arguments.routing == RoutingPolicy.KV)


def _planned(arguments: argparse.Namespace, mode: Mode) -> bool:
    return bool(arguments.prefill_max or arguments.decode_max)


def _struck(arguments: argparse.Namespace, mode: Mode) -> bool:
    return bool(arguments.fault)


_RULES: tuple[tuple[str, object, _Works, str], ...] = (
    ("link", "nvlink", _pair, "disaggregated deployments"),
    ("link_sharing", Sharing.SOURCE, _pair, "disaggregated deployments"),
    ("transfer", Transfer.PULL, _pair, "disaggregated deployments"),
    ("first_token", "prefill", _pulled, "deployments with decode instances"),
    ("fill_tokens", None, _prefills, "deployments with prefill instances"),
    ("prefill_burst", None, _prefill_first, "colocated instances under prefill-first"),
    ("max_batched_tokens", None, _whole_prompts, "prefill instances and colocated ones under prefill-first"),
    ("speculation", None, _decodes, "deployments that decode"),
    ("scheduling_overhead", None, _prompts, "deployments that compute prompts"),
    ("overlap_weight", 1.0, _by_prefixes, "--routing kv"),
    ("startup", None, _planned, "a planner: --prefill-max, --decode-max"),
    ("planner_interval", None, _planned, "a planner: --prefill-max, --decode-max"),
    ("predictor", Predictor.CONSTANT, _planned, "a planner: --prefill-max, --decode-max"),
    ("no_retry", False, _struck, "runs with a --fault"),
)


def refuse_idle(arguments: argparse.Namespace, mode: Mode) -> None:
    """Raises `UsageError` for a flag that this command line gives, and that has nothing to do in it."""
    if getattr(arguments, "ratios", None):
        return
    own = getattr(arguments, "defaults", {})
    for dest, default, works, place in _RULES:
        given = getattr(arguments, dest, default) not in (default, own.get(dest, default))
        if given and not works(arguments, mode):
            raise UsageError(f"--{dest.replace('_', '-')} is for {place}; the mode is {mode}, and it would do nothing")
