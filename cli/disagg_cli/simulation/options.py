"""The flags that describe a deployment, a load and the promises, for all commands that simulate.

Defaults that depend on other flags (the mode, the number of requests) are None here and filled in where they are used.
"""

from __future__ import annotations

import argparse
import re
from functools import partial

from disagg_cli.instances import add_instance_options, add_time_model_options
from disagg_cli.parsing import Parser, choice, count, duration, integer, positive
from disagg_contract.config import Admission, BatchPolicy, Predictor, QueueOrder, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching.speculation import Speculation
from disagg_engine.errors import SettingError
from disagg_simulator.deployment import Mode, Sharing, Transfer
from disagg_simulator.errors import OptionError
from disagg_simulator.options import Fault, FaultKind

DEFAULT_TTFT_SECONDS = 0.25
DEFAULT_TPOT_SECONDS = 0.1
DEFAULT_REQUESTS = 3000
DECODE_REQUESTS = 8000
"""Decode-only runs need more: with fewer, batches are still filling up when the run ends."""

FIRST_TOKENS = ("prefill", "decode")


def one_of(kind: str, values: list[str]) -> partial[str]:
    """An argument type: one of these, or a sentence that lists them."""
    return partial(choice, kind, values)


def add_deployment_options(parser: Parser) -> None:
    """What is simulated."""
    group = parser.add_argument_group("deployment")
    group.add_argument(
        "--mode",
        type=one_of("mode", [mode.value for mode in Mode]),
        metavar="MODE",
        help="colocated, disaggregated, prefill-only or decode-only (default: disaggregated where flags speak of "
        "both roles or set one apart, prefill-only or decode-only with --prefill or --decode alone, else colocated)",
    )
    group.add_argument("--replicas", type=count, metavar="N", help="instances of a deployment of one role (1)")
    group.add_argument("--prefill", type=count, metavar="N", help="prefill instances (1)")
    group.add_argument("--decode", type=count, metavar="N", help="decode instances (1)")
    for role in ("prefill", "decode"):
        group.add_argument(f"--{role}-gpu", metavar="G", help=f"GPU of {role} instances, where it is not --gpu")
        group.add_argument(f"--{role}-tensor", type=count, metavar="N", help=f"--tensor of {role} instances")
        group.add_argument(f"--{role}-pipeline", type=count, metavar="N", help=f"--pipeline of {role} instances")
        group.add_argument(
            f"--{role}-data-parallel", type=count, metavar="N", help=f"--data-parallel of {role} instances"
        )
        group.add_argument(
            f"--{role}-expert-parallel", type=count, metavar="N", help=f"--expert-parallel of {role} instances"
        )
    group.add_argument(
        "--routing",
        type=one_of("routing policy", [policy.value for policy in RoutingPolicy]),
        default=RoutingPolicy.LEAST_LOADED.value,
        metavar="POLICY",
        help="least-loaded (default), round-robin, or kv, which looks for cached prefixes",
    )
    group.add_argument(
        "--overlap-weight", type=positive, default=1.0, metavar="W", help="weight of cached prefixes under kv (1)"
    )
    _add_link_options(parser)
    _add_batching_options(parser)
    add_time_model_options(parser)


def _add_link_options(parser: Parser) -> None:
    group = parser.add_argument_group("link from prefill to decode")
    group.add_argument("--link", default="nvlink", metavar="NAME", help="a name from disagg links (nvlink)")
    group.add_argument(
        "--link-sharing",
        type=one_of("way to share a link", [sharing.value for sharing in Sharing]),
        default=Sharing.SOURCE.value,
        metavar="WHO",
        help="which transfers queue behind each other: those of one prefill instance (source, default), of one pair "
        "of instances (pair), all of them (all), or none",
    )
    group.add_argument(
        "--transfer",
        type=one_of("transfer", [transfer.value for transfer in Transfer]),
        default=Transfer.PULL.value,
        metavar="WAY",
        help="pull (default): KV waits in prefill memory until decode has room; push: it is sent at once",
    )
    group.add_argument(
        "--first-token",
        type=one_of("first token", list(FIRST_TOKENS)),
        default="prefill",
        metavar="WHO",
        help="who emits it: prefill (default, as DistServe counts) or decode after the transfer (as the pods do)",
    )


def _add_batching_options(parser: Parser) -> None:
    group = parser.add_argument_group(
        "batching and KV (tokens and sequences are those of each data-parallel rank, where there are several)"
    )
    group.add_argument(
        "--scheduler",
        type=one_of("scheduler", [policy.value for policy in BatchPolicy]),
        metavar="NAME",
        help=f"of colocated instances: {', '.join(policy.value for policy in BatchPolicy)} (prefill-first)",
    )
    group.add_argument(
        "--token-budget", type=count, metavar="N", help="tokens of a chunked iteration, decodes included (512)"
    )
    group.add_argument("--max-batched-tokens", type=count, metavar="N", help="prompt tokens of an iteration (2048)")
    group.add_argument(
        "--prefill-burst",
        type=count,
        metavar="N",
        help="prefill iterations in a row while a decode waits, under prefill-first (no limit; pods: 8)",
    )
    group.add_argument(
        "--fill-tokens", type=count, metavar="N", help="prompt tokens that a prefill instance batches (512)"
    )
    group.add_argument("--max-sequences", type=count, metavar="N", help="sequences of an instance at a time (256)")
    group.add_argument(
        "--queue-order",
        type=one_of("queue order", [order.value for order in QueueOrder]),
        default=QueueOrder.FCFS.value,
        metavar="ORDER",
        help="who of the waiting is next: fcfs (default), shortest-first with ageing, or preemptive, which also "
        "interrupts long prompts",
    )
    group.add_argument(
        "--speculation",
        type=speculation,
        metavar="K:A[:C]",
        help="K draft tokens a step, each accepted with probability A, a draft pass costing C (0) of a decode step",
    )
    group.add_argument(
        "--scheduling-overhead",
        type=duration,
        metavar="TIME",
        help="from a request's arrival until it can take part: tokenising, scheduling (0)",
    )
    group.add_argument(
        "--admission",
        type=one_of("admission", [admission.value for admission in Admission]),
        default=Admission.RESERVE.value,
        metavar="RULE",
        help="reserve (default): room for prompt and answer before a request starts; preempt: room for what there is, "
        "and recomputation when it runs out (the pods' default)",
    )
    group.add_argument("--kv-capacity-tokens", type=count, metavar="N", help="KV room of an instance (what is left)")
    group.add_argument(
        "--prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="keep KV in blocks and reuse equal prefixes",
    )
    group.add_argument("--block-tokens", type=count, metavar="N", help="tokens of a KV block (16 with prefix caching)")


def add_load_options(parser: Parser, *, rate: bool) -> None:
    """What is offered. rate: whether there is a `--rate` (a search has none)."""
    group = parser.add_argument_group("load")
    group.add_argument("--input", type=count, metavar="N", help="prompt tokens (mean, unless fixed)")
    group.add_argument("--output", type=count, metavar="N", help="answer tokens (mean, unless fixed)")
    group.add_argument(
        "--workload", metavar="NAME", help="a named load (chat, code, summarisation, ...; see disagg replay --help)"
    )
    stretched = "--rate, if given" if rate else "each rate that is tried"
    group.add_argument(
        "--trace",
        metavar="FILE",
        help=f"a trace (formats: disagg replay --help); its arrivals are stretched to {stretched}",
    )
    group.add_argument(
        "--lengths",
        metavar="SHAPE",
        help="fixed or lognormal[:SIGMA] (fixed with --input and --output; else the load's own)",
    )
    if rate:
        group.add_argument("--rate", type=positive, metavar="R", help="requests/s (default: the load's own)")
    group.add_argument(
        "--requests",
        type=count,
        metavar="N",
        help=f"requests to simulate ({DEFAULT_REQUESTS}; decode-only {DECODE_REQUESTS}; a trace: all)",
    )
    group.add_argument(
        "--burstiness", type=positive, metavar="CV", help="CV of the gaps between arrivals; 1 is Poisson (the default)"
    )
    group.add_argument("--seed", type=integer, default=0, help="seed of everything that is drawn (0)")
    add_slo_options(parser)


def add_slo_options(parser: Parser) -> None:
    """What is promised."""
    group = parser.add_argument_group("promises")
    group.add_argument(
        "--ttft",
        type=duration,
        default=DEFAULT_TTFT_SECONDS,
        metavar="TIME",
        help="time to first token, like 400ms or 0.4 (250ms)",
    )
    group.add_argument(
        "--tpot",
        type=duration,
        default=DEFAULT_TPOT_SECONDS,
        metavar="TIME",
        help="time per output token after the first (100ms)",
    )


def add_run_options(parser: Parser) -> None:
    """How a run is done."""
    group = parser.add_argument_group("run")
    group.add_argument("--until", type=duration, metavar="TIME", help="stop then; what is under way stays unfinished")
    group.add_argument(
        "--concurrency",
        type=count,
        metavar="N",
        help="closed loop: N requests at a time, the next one sent when one ends, instead of at --rate",
    )
    group.add_argument(
        "--no-retry",
        action="store_true",
        help="requests lost with an instance have failed (else: start again)",
    )
    group.add_argument(
        "--fault",
        type=fault,
        action="append",
        default=[],
        metavar="WHAT",
        help="kill:decode-0@60 loses an instance at 60 s, kill:decode-0@60+30 for 30 s; slow:prefill-1@10+60x2 makes "
        "it twice as slow for a minute; can be given again",
    )


def add_planner_options(parser: Parser) -> None:
    """Whether and how the deployment is scaled while it runs."""
    group = parser.add_argument_group("planner in the loop (disaggregated deployments)")
    for role in ("prefill", "decode"):
        group.add_argument(
            f"--{role}-max", type=count, metavar="N", help=f"scale {role} between 1 and so many instances"
        )
    group.add_argument("--planner-interval", type=duration, metavar="TIME", help="between two decisions (30s)")
    group.add_argument(
        "--predictor",
        type=one_of("predictor", [name.value for name in Predictor]),
        default=Predictor.CONSTANT.value,
        metavar="NAME",
        help="how the load is forecast: constant (what was will be, the default) or arima",
    )
    group.add_argument("--startup", type=duration, metavar="TIME", help="until a new instance serves (0)")


def add_json_option(parser: argparse._ActionsContainer, what: str) -> None:
    """`--json`, with or without a file."""
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help=f"write {what} as JSON there; without a file (or with -) print it instead of the table",
    )


def add_all(parser: Parser, *, rate: bool) -> None:
    """All flags that `disagg simulate` has but for its outputs."""
    add_instance_options(parser)
    add_deployment_options(parser)
    add_load_options(parser, rate=rate)
    add_run_options(parser)
    add_planner_options(parser)


def share(text: str) -> float:
    """A share above 0 and below 1."""
    value = positive(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share above 0 and below 1")
    return value


def speculation(text: str) -> Speculation:
    """Speculative decoding from TOKENS:ACCEPTANCE[:COST]."""
    parts = text.split(":")
    try:
        if len(parts) not in (2, 3):
            raise ValueError("two or three numbers are needed")
        return Speculation(
            draft_tokens=int(parts[0]), acceptance=float(parts[1]), draft_cost=float(parts[2]) if parts[2:] else 0.0
        )
    except (SettingError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no speculation like 4:0.7 or 4:0.7:0.05 ({error})") from None


_FAULT = re.compile(
    r"(?P<kind>kill|slow):(?P<role>prefill|decode|worker)-(?P<index>\d+)@(?P<at>[\d.]+)"
    r"(\+(?P<for>[\d.]+))?(x(?P<factor>[\d.]+))?"
)


def fault(text: str) -> Fault:
    """A fault from kill:ROLE-NUMBER@SECONDS[+SECONDS] or slow:ROLE-NUMBER@SECONDS[+SECONDS]xFACTOR."""
    found = _FAULT.fullmatch(text)
    if not found or (found["kind"] == "slow") != (found["factor"] is not None):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no fault like kill:decode-0@60, kill:decode-0@60+30 or slow:prefill-1@10+60x2"
        )
    try:
        return Fault(
            at_seconds=float(found["at"]),
            role=Role(found["role"]),
            index=int(found["index"]),
            kind=FaultKind(found["kind"]),
            for_seconds=float(found["for"] or "inf"),
            factor=float(found["factor"] or 1.0),
        )
    except (OptionError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
