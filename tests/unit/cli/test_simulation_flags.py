"""Flags of the commands that simulate: what they mean, and how they are refused."""

import argparse
import shlex
from typing import Any

import pytest

from disagg_cli.errors import UsageError
from disagg_cli.parsing import Parser
from disagg_cli.registry import COMMANDS
from disagg_cli.simulation.deployments import build_deployment
from disagg_cli.simulation.loads import build_load, build_source
from disagg_cli.simulation.options import add_all, fault
from disagg_cli.simulation.ranges import numbers, ratios
from disagg_cli.simulation.searches import search_goodput
from disagg_contract.config import Admission, BatchPolicy, QueueOrder, RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import FirstToken
from disagg_simulator.deployment import Ledger, Mode, Sharing, Transfer
from disagg_simulator.options import FaultKind

BASE = ("--model", "opt-13b", "--gpu", "a100-80gb")
LOAD = ("--input", "512", "--output", "64", "--rate", "3")


def parsed(*flags: str) -> argparse.Namespace:
    parser = Parser(prog="disagg simulate")
    add_all(parser, rate=True)
    return parser.parse_args([*BASE, *flags])


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ((), Mode.COLOCATED),
        (("--replicas", "3"), Mode.COLOCATED),
        (("--prefill", "2", "--decode", "1"), Mode.DISAGGREGATED),
        (("--prefill", "2"), Mode.PREFILL_ONLY),
        (("--decode", "2"), Mode.DECODE_ONLY),
        (("--mode", "disaggregated"), Mode.DISAGGREGATED),
        (("--mode", "decode-only"), Mode.DECODE_ONLY),
        (("--mode", "prefill-only", "--replicas", "2"), Mode.PREFILL_ONLY),
    ],
)
def test_the_mode_is_what_the_counts_mean(flags: tuple[str, ...], mode: Mode) -> None:
    assert build_deployment(parsed(*flags)).mode is mode


def test_each_role_has_parallelism_and_gpus_of_its_own() -> None:
    deployment = build_deployment(
        parsed(
            *("--prefill", "3", "--decode", "2", "--tensor", "2", "--prefill-tensor", "3", "--decode-pipeline", "2"),
            *("--decode-gpu", "h100", "--link", "ib-800", "--link-sharing", "all", "--transfer", "push"),
            *("--first-token", "decode", "--routing", "round-robin", "--max-sequences", "64"),
        )
    )
    prefill, decode = deployment.prefill[0], deployment.decode[0]
    assert (prefill.replicas, prefill.instance.tensor, prefill.instance.pipeline) == (3, 3, 1)
    assert (decode.replicas, decode.instance.tensor, decode.instance.pipeline) == (2, 2, 2)
    assert (prefill.instance.gpu.name, decode.instance.gpu.name) == ("a100-80gb", "h100")
    assert decode.batching.pipeline == 2
    assert decode.batching.max_sequences == 64
    assert deployment.link.bytes_per_second == 100e9
    assert deployment.link.sharing is Sharing.ALL
    assert deployment.transfer is Transfer.PUSH
    assert deployment.first_token is FirstToken.LOGITS
    assert deployment.routing is RoutingPolicy.ROUND_ROBIN


def test_sm3_decode_parallelism_leaves_prefill_alone() -> None:
    flags = ("--prefill", "1", "--decode", "1")
    plain, wide = (build_deployment(parsed(*flags, *more)) for more in ((), ("--decode-tensor", "4")))
    assert plain.prefill[0].instance == wide.prefill[0].instance
    assert wide.decode[0].instance.tensor == 4
    swapped = build_deployment(parsed(*flags, "--prefill-tensor", "4"))
    assert swapped.decode[0].instance == plain.decode[0].instance
    assert swapped.prefill[0].instance.tensor == 4


def test_defaults_are_those_of_the_reference() -> None:
    deployment = build_deployment(parsed("--prefill", "1", "--decode", "1"))
    group = deployment.prefill[0]
    assert deployment.link.bytes_per_second == 300e9
    assert deployment.first_token is FirstToken.PREFILL
    assert group.batching.admission is Admission.RESERVE
    assert group.ledger is Ledger.COUNTING
    assert (group.batching.fill_tokens, group.batching.max_batched_tokens) == (512, 2048)


def test_batching_flags() -> None:
    group = build_deployment(
        parsed("--scheduler", "chunked", "--token-budget", "256", "--admission", "preempt", "--prefix-caching")
    ).workers[0]
    assert group.batching.policy is BatchPolicy.CHUNKED
    assert group.batching.chunk_tokens == 256
    assert group.batching.admission is Admission.PREEMPT
    assert (group.ledger, group.block_tokens) == (Ledger.BLOCKS, 16)
    assert build_deployment(parsed("--block-tokens", "512")).workers[0].block_tokens == 512
    assert build_deployment(parsed("--kv-capacity-tokens", "777")).workers[0].capacity_tokens == 777


def test_further_batching_flags() -> None:
    deployment = build_deployment(
        parsed(
            *("--prefill", "1", "--decode", "1", "--queue-order", "shortest-first", "--speculation", "4:0.7:0.05"),
            *("--scheduling-overhead", "2ms"),
        )
    )
    prefill, decode = deployment.prefill[0].batching, deployment.decode[0].batching
    assert prefill.queue_order is QueueOrder.SHORTEST_FIRST
    assert prefill.scheduling_overhead_seconds == 0.002
    assert prefill.speculation is None
    assert decode.speculation is not None
    assert (decode.speculation.draft_tokens, decode.speculation.acceptance) == (4, 0.7)


def test_a_mixture_of_experts_over_hundreds_of_gpus() -> None:
    """DeepSeek-V3's own deployment: prefill on 32 GPUs, decode on 320."""
    parser = Parser(prog="disagg simulate")
    add_all(parser, rate=True)
    wide = ("tensor", "4"), ("data-parallel", "8"), ("expert-parallel", "32")
    flags = [part for name, value in wide for part in (f"--prefill-{name}", value)]
    flags += ["--decode-tensor", "4", "--decode-data-parallel", "80", "--decode-expert-parallel", "320"]
    deployment = build_deployment(
        parser.parse_args(
            [
                *("--model", "deepseek-v3", "--gpu", "h200", "--weights", "fp8", "--prefill", "1", "--decode", "1"),
                *flags,
            ]
        )
    )
    assert [group.gpus for group in deployment.groups] == [32, 320]


@pytest.mark.parametrize("text", ["4", "0:0.5", "4:1.5", "4:nan", "x:0.5", "4:0.5:-1", "1:1:1:1"])
def test_speculation_that_makes_no_sense(refused: Any, text: str) -> None:
    assert "argument --speculation" in refused("simulate", *BASE, *LOAD, "--speculation", text)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--mode", "colocated", "--prefill", "2"), ("--prefill", "--mode colocated", "--replicas")),
        (("--mode", "disaggregated", "--replicas", "2"), ("--replicas", "--prefill and --decode")),
        (("--mode", "decode-only", "--prefill", "2"), ("--prefill", "--decode")),
        (("--prefill", "1", "--decode", "1", "--scheduler", "chunked"), ("--scheduler", "colocated")),
        (("--prefill", "1", "--decode", "1", "--replicas", "2"), ("--replicas", "--prefill and --decode")),
        (("--prefill", "1", "--replicas", "2"), ("--replicas and --prefill", "give one")),
        (("--token-budget", "512"), ("--token-budget", "chunked")),
        (("--gpu", "a100"), ("a100",)),
        (("--link", "tin-can", "--prefill", "1", "--decode", "1"), ("tin-can", "nvlink", "eth-25")),
        (("--decode-gpu", "abacus", "--prefill", "1", "--decode", "1"), ("abacus", "h100")),
    ],
)
def test_what_can_not_be_is_refused_with_what_would_be_right(flags: tuple[str, ...], words: tuple[str, ...]) -> None:
    if flags == ("--gpu", "a100"):
        assert build_deployment(parsed(*flags)).groups[0].instance.gpu.name == "a100-80gb"
        return
    with pytest.raises(UsageError) as error:
        build_deployment(parsed(*flags))
    for word in words:
        assert word in str(error.value)


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would(refused: Any) -> None:
    text = refused("simulate", "--model", "opt-66b", "--gpu", "a100-80gb", *LOAD)
    assert "GB too little" in text
    assert "tensor 2" in text
    text = refused("goodput", "--model", "opt-175b", "--gpu", "a100-80gb", "--tensor", "2", *LOAD[:4])
    assert "GB too little" in text


def test_a_tensor_degree_that_is_no_power_of_two_works() -> None:
    assert build_deployment(parsed("--tensor", "3")).gpus == 3


@pytest.mark.parametrize("command", ["simulate", "sweep"])
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--rate", "0"),
        ("--rate", "-1"),
        ("--rate", "nan"),
        ("--rate", "inf"),
        ("--rate", "fast"),
        ("--input", "0"),
        ("--output", "-3"),
        ("--requests", "0"),
        ("--ttft", "0"),
        ("--tpot", "nan"),
        ("--tensor", "0"),
        ("--prefill", "0"),
        ("--replicas", "-2"),
        ("--burstiness", "0"),
        ("--token-budget", "0"),
        ("--until", "-1s"),
    ],
)
def test_zero_negative_and_nan_are_refused_by_flag(refused: Any, command: str, flag: str, value: str) -> None:
    text = refused(command, *BASE, *LOAD, f"{flag}={value}")
    assert f"argument {flag}" in text
    assert value in text


@pytest.mark.parametrize(
    ("flag", "known"),
    [
        ("--mode", "colocated, disaggregated, prefill-only, decode-only"),
        ("--scheduler", "prefill-first, chunked"),
        ("--routing", "kv, least-loaded, round-robin"),
        ("--transfer", "pull, push"),
        ("--link-sharing", "none, pair, source, all"),
        ("--first-token", "prefill, decode"),
        ("--admission", "reserve, preempt"),
        ("--time-model", "roofline"),
    ],
)
def test_unknown_names_list_the_known_ones(refused: Any, flag: str, known: str) -> None:
    text = refused("simulate", *BASE, *LOAD, flag, "nonsense")
    assert "'nonsense'" in text
    assert known in text


def test_unknown_models_and_workloads_list_the_known_ones(refused: Any) -> None:
    assert "opt-13b" in refused("simulate", "--model", "opt-13", "--gpu", "h100", *LOAD)
    assert "summarisation" in refused("simulate", *BASE, "--workload", "chatt", "--rate", "1")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ((), "none is given"),
        (("--input", "5", "--output", "5", "--trace", "x.csv"), "--trace and --input and --output"),
        (("--workload", "chat", "--trace", "x.csv"), "--trace and --workload"),
        (("--input", "5"), "--output is missing"),
        (("--output", "5"), "--input is missing"),
        (("--input", "5", "--output", "5"), "--rate"),
        (("--input", "5", "--output", "5", "--rate", "1", "--lengths", "round"), "lognormal:SIGMA"),
        (("--input", "5", "--output", "5", "--rate", "1", "--lengths", "lognormal:x"), "sigma"),
        (("--input", "5", "--output", "5", "--rate", "1", "--lengths", "lognormal:nan"), "nan"),
        (("--trace", "no-such-file.csv"), "no-such-file.csv"),
        (("--trace", "builtin:chat", "--lengths", "fixed"), "--lengths"),
    ],
)
def test_loads_that_make_no_sense(flags: tuple[str, ...], word: str) -> None:
    with pytest.raises(UsageError, match=word.replace("(", r"\(")):
        build_load(parsed(*flags), Mode.COLOCATED)


def test_lengths_are_fixed_unless_said_otherwise() -> None:
    fixed = build_load(parsed(*LOAD, "--requests", "50"), Mode.COLOCATED)
    assert set(fixed.input_tokens) == {512}
    assert set(fixed.output_tokens) == {64}
    drawn = build_load(parsed(*LOAD, "--requests", "50", "--lengths", "lognormal:0.4"), Mode.COLOCATED)
    assert len(set(drawn.input_tokens)) > 20


def test_decode_only_runs_are_longer() -> None:
    assert len(build_load(parsed(*LOAD), Mode.DECODE_ONLY)) == 8000
    assert len(build_load(parsed(*LOAD), Mode.COLOCATED)) == 3000


@pytest.mark.parametrize("load", [LOAD[:4], ("--workload", "chat"), ("--workload", "code", "--burstiness", "2")])
def test_a_search_and_a_simulation_see_the_same_requests(load: tuple[str, ...]) -> None:
    arguments = parsed(*load, "--rate", "3.7", "--requests", "300")
    once = build_load(arguments, Mode.COLOCATED)
    searched = build_source(arguments)(3.7, 300)
    assert once.arrival_seconds == searched.arrival_seconds
    assert once.input_tokens == searched.input_tokens
    assert once.output_tokens == searched.output_tokens


def test_a_trace_is_stretched_to_the_rate() -> None:
    trace = ("--trace", "builtin:chat?requests=200&rate=2")
    own = build_load(parsed(*trace), Mode.COLOCATED)
    fast = build_load(parsed(*trace, "--rate", "8"), Mode.COLOCATED)
    assert len(own) == len(fast) == 200
    assert 199 / fast.span_seconds == pytest.approx(8.0)
    assert len(build_load(parsed(*trace, "--requests", "20"), Mode.COLOCATED)) == 20


def test_workload_options_and_flags_go_together() -> None:
    load = build_load(
        parsed("--workload", "chat?output=10&seconds=30", "--rate", "4", "--lengths", "fixed"), Mode.COLOCATED
    )
    assert set(load.output_tokens) == {10}
    assert load.span_seconds < 30
    assert 60 < len(load) < 200


def test_a_load_with_a_length_of_its_own_is_taken_whole() -> None:
    whole = build_load(parsed("--workload", "six-hours", "--rate", "0.5"), Mode.COLOCATED)
    assert len(whole) > 8000
    assert whole.span_seconds > 5.9 * 3600
    assert len(build_load(parsed("--workload", "six-hours", "--requests", "10"), Mode.COLOCATED)) == 10


def test_faults() -> None:
    killed = fault("kill:decode-1@60+30")
    assert (killed.kind, killed.role, killed.index) == (FaultKind.KILL, Role.DECODE, 1)
    assert (killed.at_seconds, killed.for_seconds) == (60, 30)
    assert fault("kill:worker-0@5").for_seconds == float("inf")
    assert fault("slow:prefill-0@10+60x2.5").factor == 2.5
    for text in ("kill:router-0@5", "kill:decode-0", "slow:decode-0@5", "kill:decode-0@5x2", "slow:decode-0@5+0x2"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"kill:decode-0@60|above 0"):
            fault(text)


def test_ranges_and_ratios() -> None:
    assert numbers("1,2.5") == (1.0, 2.5)
    assert numbers("0.1:0.5:0.1") == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert numbers("1:2:0.5,7") == (1.0, 1.5, 2.0, 7.0)
    assert [str(ratio) for ratio in ratios("2P1D,3w,10p12d")] == ["2P1D", "3W", "10P12D"]
    for text in ("2:1:1", "1:2", "0:5:1", "1,,2", "1:1e9:0.001"):
        with pytest.raises(argparse.ArgumentTypeError):
            numbers(text)
    for text in ("2P", "P1D", "0P1D", "2P1D1W", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="2P1D"):
            ratios(text)


@pytest.mark.parametrize("name", ["simulate", "goodput", "sweep", "compare", "replay"])
def test_examples_in_help_are_command_lines_that_parse(name: str) -> None:
    command = COMMANDS[name].load()
    for example in command.EXAMPLES:
        line, _, _remark = example.replace("\\\n      ", "").partition("      ")
        words = shlex.split(line)
        assert words[:2] == ["disagg", name]
        parser = Parser(prog=f"disagg {name}")
        command.configure(parser, name)
        parser.parse_args(words[2:])


@pytest.mark.parametrize(
    "flags",
    [
        "--link ib-800",
        "--link nosuch",
        "--link-sharing all",
        "--transfer push",
        "--first-token decode",
        "--fill-tokens 100",
        "--prefill 1 --decode 1 --prefill-burst 2",
        "--scheduler chunked --prefill-burst 2",
        "--scheduler static --max-batched-tokens 100",
        "--mode decode-only --max-batched-tokens 100",
        "--mode prefill-only --speculation 4:0.7",
        "--mode decode-only --scheduling-overhead 2ms",
        "--overlap-weight 3",
        "--prefill 1 --decode 1 --startup 10s",
        "--prefill 1 --decode 1 --planner-interval 10s",
        "--prefill 1 --decode 1 --predictor arima",
        "--no-retry",
    ],
)
def test_a_flag_that_would_do_nothing_is_refused_by_name(flags: str) -> None:
    """The last flag of each line; where it has something to do it is taken, as other tests show."""
    with pytest.raises(UsageError, match=f"{flags.rpartition('--')[2].split()[0]} is for "):
        build_deployment(parsed(*flags.split()))


@pytest.mark.parametrize(
    "flags",
    [
        "--prefill 1 --decode 1 --link ib-800 --link-sharing all --transfer push --first-token decode",
        "--prefill 1 --decode 1 --fill-tokens 100",
        "--prefill-burst 2 --max-batched-tokens 100 --speculation 4:0.7 --scheduling-overhead 2ms",
        "--routing kv --overlap-weight 3 --fault kill:worker-0@1 --no-retry",
        "--prefill 1 --decode 1 --prefill-max 2 --startup 10s --planner-interval 10s --predictor arima",
    ],
)
def test_the_same_flags_are_taken_where_they_count(flags: str) -> None:
    assert build_deployment(parsed(*flags.split())).groups


@pytest.mark.parametrize("flags", [("--rate", "3"), ("--burstiness", "2")])
def test_a_closed_loop_has_no_arrivals_of_its_own(flags: tuple[str, str]) -> None:
    load = ("--input", "512", "--output", "64", "--concurrency", "4")
    with pytest.raises(UsageError, match=f"{flags[0]} is about when requests arrive"):
        build_load(parsed(*load, *flags), Mode.COLOCATED)


def test_in_a_sweep_over_ratios_the_scheduler_is_that_of_colocated_cells() -> None:
    arguments = parsed("--scheduler", "chunked", "--token-budget", "256", "--link", "ib-800")
    arguments.ratios = ratios("1W,1P1D")
    arguments.replicas, arguments.mode = 1, "colocated"
    assert build_deployment(arguments).workers[0].batching.policy is BatchPolicy.CHUNKED
    arguments.replicas, arguments.prefill, arguments.decode, arguments.mode = None, 1, 1, "disaggregated"
    pair = build_deployment(arguments)
    assert {group.batching.policy for group in pair.groups} == {BatchPolicy.PREFILL_FIRST}
    assert pair.link.name == "ib-800"


def test_goodput_takes_no_rate_and_says_what_it_takes(refused: Any) -> None:
    flags = ("--model", "opt-13b", "--gpu", "a100-80gb", "--workload", "chat", "--rate", "5")
    assert "--start" in refused("goodput", *flags)


def test_a_rate_without_bound_is_no_answer() -> None:
    """One request, or promises that the whole run keeps: the highest rate tried would be a number without meaning."""
    parser = Parser(prog="disagg goodput")
    add_all(parser, rate=False)
    arguments = parser.parse_args([*BASE, "--input", "512", "--output", "64", "--requests", "1", "--ttft", "1s"])
    arguments.target, arguments.tolerance, arguments.start = 0.9, 0.005, 1.0
    with pytest.raises(UsageError, match="1 requests meet the promises however fast they come"):
        search_goodput(arguments, build_deployment(arguments))


def test_a_model_that_does_not_fit_is_refused_whatever_room_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"276\.0 GB too little; tensor 6 × pipeline 1 would be enough"):
        build_deployment(parsed("--model", "opt-175b", "--kv-capacity-tokens", "1000"))
