"""`disagg simulate`, `goodput`, `sweep` and `compare`, from flags to what is printed."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from disagg_cli.simulation.tables import show_rate

BASE = ("--model", "opt-13b", "--gpu", "a100-80gb")
LENGTHS = ("--input", "512", "--output", "64")
SLO = ("--ttft", "400ms", "--tpot", "40ms")
FEW = ("--requests", "200")


def test_a_table_for_people(said: Any) -> None:
    text = said("simulate", *BASE, *LENGTHS, *SLO, *FEW, "--rate", "3")
    assert "OPT-13B: 1 colocated on a100-80gb" in text
    for word in ("first token (TTFT)", "queueing", "prefill", "per token (TPOT)", "between tokens", "SLO attainment"):
        assert word in text
    assert "200 requests: 200 completed" in text
    assert "seed 0" in text


def test_json_for_programs(said: Any, tmp_path: Path) -> None:
    flags = (*BASE, *LENGTHS, *SLO, *FEW, "--rate", "3", "--seed", "5")
    printed = json.loads(said("simulate", *flags, "--json"))
    assert printed["completed"] == 200
    assert printed["seed"] == 5
    assert printed["slo"] == {"ttft_seconds": 0.4, "tpot_seconds": 0.04}
    assert json.loads(said("simulate", *flags, "--json", "-")) == printed
    table = said("simulate", *flags, "--json", str(tmp_path / "result.json"))
    assert "SLO attainment" in table
    assert json.loads((tmp_path / "result.json").read_text()) == printed


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(said: Any) -> None:
    flags = ("simulate", *BASE, "--workload", "chat", "--rate", "3", *FEW, "--json")
    assert said(*flags) == said(*flags)
    assert said(*flags) != said(*flags, "--seed", "1")


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        (("--prefill", "2", "--decode", "1"), 3),
        (("--prefill-tensor", "2"), 3),
        (("--prefill", "2", "--decode-gpu", "h100"), 3),
        (("--mode", "prefill-only"), 1),
        (("--mode", "decode-only", "--decode-tensor", "2"), 2),
        (("--replicas", "3", "--scheduler", "chunked"), 3),
        (("--prefill", "1", "--decode", "1", "--prefix-caching", "--routing", "kv", "--first-token", "decode"), 2),
    ],
)
def test_every_mode_runs(said: Any, flags: tuple[str, ...], gpus: int) -> None:
    found = json.loads(said("simulate", *BASE, *LENGTHS, *SLO, *FEW, "--rate", "2", *flags, "--json"))
    assert found["gpus"] == gpus
    assert found["completed"] == 200
    assert found["attainment"]["both"] > 0.9
    assert found["first_token"] == ("logits" if "--first-token" in flags else "prefill")


def test_beyond_capacity_is_said_and_no_error(said: Any) -> None:
    flags = ("simulate", *BASE, "--workload", "chat", "--lengths", "fixed", "--rate", "20", *FEW)
    found = json.loads(said(*flags, "--json"))
    assert found["stable"] is False
    assert found["ttft_seconds"] is None
    assert 3.5 < found["stability"]["capacity_requests_per_second"] < 5
    assert "unstable: " in said(*flags)
    assert "unstable: " in said(*flags, "--json", stream="err")


def test_until_leaves_requests_unfinished(said: Any) -> None:
    found = json.loads(said("simulate", *BASE, *LENGTHS, *FEW, "--rate", "3", "--until", "20s", "--json"))
    assert 0 < found["unfinished"] < 20
    assert found["requests"] < 100


def test_requests_longer_than_the_context_are_said(said: Any, tmp_path: Path) -> None:
    long = (*BASE, "--input", "2000", "--output", "100", "--requests", "50", "--ttft", "9s")
    assert json.loads(said("simulate", *long, "--rate", "1", "--json"))["requests_over_context"] == 50
    words = "50 requests are longer than the model's context (100.0 %)"
    assert words in said("simulate", *long, "--rate", "1")
    assert json.loads(said("goodput", *long, "--json"))["requests_over_context"] == 50
    assert words in said("goodput", *long)
    trace = tmp_path / "long.jsonl"
    rows = [{"arrival_seconds": float(at), "input_tokens": 2000, "output_tokens": 48 + at} for at in range(3)]
    trace.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    replay = ("replay", "--simulate", *BASE, "--trace", str(trace), "--slo-ttft", "9s")
    assert "2 requests are longer than the model's context (66.7 %)" in said(*replay)
    said(*replay, "--json", str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text())["requests_over_context"] == 2
    assert "model's context" not in said("simulate", *BASE, *LENGTHS, *FEW, "--rate", "3")


@pytest.mark.parametrize(("rate", "text"), [(24.149, "24.15"), (0.9523, "0.952"), (4.43e-5, "4.43e-05"), (0, "0.00")])
def test_slow_rates_are_told_with_three_figures(rate: float, text: str) -> None:
    assert show_rate(rate) == text


def test_columns_are_as_wide_as_their_figures(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (*BASE, "--input", "1700", "--output", "64", "--requests", "50", "--rate", "2")
    monkeypatch.setenv("COLUMNS", "60")
    text = said("simulate", *flags, "--ttft", "15s")
    assert "15.00 s  100.0 %" in next(line for line in text.splitlines() if line.startswith("first token"))


def test_where_the_transfer_counts_is_said(said: Any) -> None:
    """25 Gb/s need 0.13 s for 512 tokens: before the second token, or before the first."""
    flags = (*BASE, *LENGTHS, *FEW, "--rate", "0.01", "--prefill", "1", "--decode", "1", "--link", "eth-25")

    def row(*more: str) -> list[str]:
        return next(line for line in said("simulate", *flags, *more).splitlines() if "transfer" in line).split()

    assert row() == ["transfer", "in", "TPOT"]
    assert row("--first-token", "decode")[1:3] == ["134", "ms"]


def test_a_fault_costs_good_requests(said: Any) -> None:
    flags = ("simulate", *BASE, *LENGTHS, *SLO, *FEW, "--rate", "5", "--replicas", "2", "--json")
    calm, hit = json.loads(said(*flags)), json.loads(said(*flags, "--fault", "slow:worker-0@5+20x6"))
    assert hit["attainment"]["both"] < calm["attainment"]["both"] - 0.02


def test_a_closed_loop(said: Any, refused: Any) -> None:
    found = json.loads(said("simulate", *BASE, *LENGTHS, *FEW, "--concurrency", "8", "--json"))
    assert found["completed"] == 200
    assert 3 < found["throughput_requests_per_second"] < 8
    assert "--concurrency" in refused("goodput", *BASE, *LENGTHS, "--concurrency", "8")


def test_a_planner_in_the_loop(said: Any, refused: Any) -> None:
    flags = (
        *("simulate", *BASE, "--prefill", "1", "--decode", "1", "--workload", "chat?burst=4:2m:6m&seconds=480"),
        *("--rate", "2", "--ttft", "500ms"),
    )
    scaled = ("--prefill-max", "4", "--decode-max", "3", "--startup", "10s", "--planner-interval", "20s")
    fixed, grown = json.loads(said(*flags, "--json")), json.loads(said(*flags, *scaled, "--json"))
    assert fixed["mean_gpus"] == fixed["gpus"] == grown["gpus"] == 2
    assert 2 < grown["mean_gpus"] < 7
    assert grown["attainment"]["both"] > fixed["attainment"]["both"]
    assert "GPU-hours" in said(*flags, *scaled)
    pair = (*BASE, *LENGTHS, "--prefill", "1", "--decode", "3")
    assert "--prefill-max" in refused("simulate", *BASE, *LENGTHS, "--rate", "1", "--prefill-max", "2")
    assert "--decode starts with 3" in refused("simulate", *pair, "--rate", "1", "--decode-max", "2")
    assert "--prefill-max" in refused("goodput", *pair, "--prefill-max", "2")


def test_goodput_for_programs(said: Any) -> None:
    found = json.loads(said("goodput", *BASE, *LENGTHS, *SLO, "--requests", "300", "--json"))
    assert found["schema"] == "disagg.dev/goodput/v1"
    assert 3.5 < found["goodput_requests_per_second"] < 6.5
    assert found["goodput_per_gpu"] == found["goodput_requests_per_second"]
    assert found["attainment"]["both"] >= 0.9
    low, high = found["interval_requests_per_second"]
    assert low <= found["goodput_requests_per_second"] < high
    assert found["evaluations"] == len(found["trials"])
    assert {trial["requests"] for trial in found["trials"]} == {300}


def test_sm5_the_best_rate_simulated_again_meets_the_promises(said: Any) -> None:
    flags = (*BASE, "--workload", "code", "--requests", "400", "--prefill", "1", "--decode", "1")
    found = json.loads(said("goodput", *flags, "--json"))
    again = json.loads(said("simulate", *flags, "--rate", repr(found["goodput_requests_per_second"]), "--json"))
    assert again["attainment"] == found["attainment"]
    assert again["attainment"]["both"] >= 0.9
    assert again["stable"] is True


def test_sm5_promises_that_nobody_keeps_are_infeasible(capsys: pytest.CaptureFixture[str]) -> None:
    from disagg_cli.main import main

    flags = ("goodput", *BASE, *LENGTHS, "--ttft", "1ms", "--tpot", "40ms", *FEW)
    assert main(flags) == 1
    text = capsys.readouterr().out
    assert "infeasible" in text
    assert "nearest miss" in text
    assert main([*flags, "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["goodput_requests_per_second"] == 0.0
    assert found["feasible"] is False
    assert found["nearest_miss"]["attainment"]["both"] == 0.0
    assert "infeasible" in err


def test_a_trace_can_be_searched(said: Any) -> None:
    found = json.loads(said("goodput", *BASE, "--trace", "builtin:chat?requests=150", "--json"))
    assert found["requests"] == 150
    assert found["goodput_requests_per_second"] > 1


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_a_sweep_has_a_row_a_cell_in_the_order_of_the_grid(said: Any) -> None:
    rows = rows_of(
        said(
            *("sweep", *BASE, *LENGTHS, *SLO, "--requests", "60", "--processes", "1"),
            *("--ratios", "1W,1P1D", "--rates", "2,4", "--slo-scales", "0.5,1"),
        )
    )
    assert [(row["ratio"], row["rate"], row["slo_scale"]) for row in rows] == [
        (ratio, rate, scale) for ratio in ("1W", "1P1D") for rate in ("2", "4") for scale in ("0.5", "1.0")
    ]
    assert {row["gpus"] for row in rows if row["ratio"] == "1P1D"} == {"2"}
    assert all(float(row["attainment_both"]) <= 1 and not row["error"] for row in rows)
    assert rows[0]["slo_ttft_seconds"] == "0.2"


def test_rates_can_be_a_gpu(said: Any) -> None:
    rows = rows_of(said("sweep", *BASE, *LENGTHS, *FEW, "--ratios", "2P1D", "--rates", "1.5", "--per-gpu"))
    assert float(rows[0]["requests_per_second"]) == 4.5


def test_any_flag_can_be_an_axis(said: Any) -> None:
    rows = rows_of(
        said(
            *("sweep", *BASE, *LENGTHS, "--requests", "40", "--rate", "2", "--scheduler", "chunked"),
            *("--grid", "token-budget=128,512", "--grid", "seed=1,2,3", "--processes", "1"),
        )
    )
    assert [(row["token_budget"], row["seed"]) for row in rows] == [
        (budget, seed) for budget in ("128", "512") for seed in ("1", "2", "3")
    ]
    assert len({row["ttft_mean_seconds"] for row in rows}) == 6


def test_a_cell_that_can_not_be_has_its_reason(said: Any, refused: Any) -> None:
    flags = ("sweep", "--model", "opt-66b", "--gpu", "a100-80gb", *LENGTHS, "--rate", "1", "--requests", "20")
    rows = rows_of(said(*flags, "--grid", "tensor=1,4", "--processes", "1"))
    assert "GB too little" in rows[0]["error"]
    assert rows[1]["error"] == ""
    assert rows[1]["completed"] == "20"


def test_a_sweep_into_a_file_says_what_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from disagg_cli.main import main

    path = tmp_path / "rows.csv"
    flags = ("sweep", *BASE, "--input", "2000", "--output", "50", "--requests", "20", "--grid", "model=opt-13b,opt-66b")
    assert main([*flags, "--rate", "1", "--processes", "1", "--csv", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"disagg sweep: {path} has 2 rows, 1 of them with a reason why not\n"
    assert [row["requests_over_context"] for row in rows_of(path.read_text())] == ["20", ""]


def test_a_sweep_of_nothing_but_errors_fails(capsys: pytest.CaptureFixture[str]) -> None:
    from disagg_cli.main import main

    flags = ("sweep", "--model", "opt-66b", "--gpu", "a100-80gb", *LENGTHS, "--rate", "1", "--requests", "20")
    assert main(flags) == 1
    assert "no cell could be simulated" in capsys.readouterr().err


def test_goodput_of_each_cell(said: Any, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    said(
        *("sweep", *BASE, *LENGTHS, *SLO, "--requests", "150", "--goodput", "--processes", "1"),
        *("--ratios", "1W,1P1D", "--csv", str(out)),
    )
    rows = rows_of(out.read_text())
    assert [row["ratio"] for row in rows] == ["1W", "1P1D"]
    assert all(float(row["goodput_per_gpu"]) > 1 for row in rows)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--goodput", "--rates", "1,2"), "--goodput finds the rate"),
        (("--grid", "nonsense=1"), "token-budget"),
        (("--grid", "tensor"), "FLAG=V,V"),
        (("--grid", "tensor=0,1"), "--grid tensor: '0'"),
        (("--rates", "0,1"), "--rates"),
        (("--slo-scales", "nan"), "--slo-scales"),
        (("--plot", "picture.txt"), ".png, .svg, .pdf"),
    ],
)
def test_sweeps_that_make_no_sense(refused: Any, flags: tuple[str, ...], words: str) -> None:
    assert words in refused("sweep", *BASE, *LENGTHS, *flags)


def replayed(said: Any, path: Path, *flags: str) -> dict[str, Any]:
    trace = "builtin:chat?rate=2&requests=80"
    said("replay", "--simulate", *BASE, "--trace", trace, *flags, "--json", str(path))
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_a_simulated_replay_is_the_report_of_a_replay(said: Any, tmp_path: Path) -> None:
    report = replayed(said, tmp_path / "a.json")
    assert report["schema"] == "disagg.dev/replay/v1"
    assert report["url"].startswith("simulated: OPT-13B: 1 colocated")
    assert "first token by decode" in report["url"]
    assert (report["requests"], report["completed"], report["late"]) == (80, 80, 0)
    assert len(report["per_request"]) == 80
    assert report["tbt_seconds"]["p50"] > 0.01
    faster = replayed(said, tmp_path / "b.json", "--rate-scale", "2")
    assert faster["duration_seconds"] < report["duration_seconds"] * 0.7


def test_a_simulated_replay_counts_what_did_not_end_as_errors(said: Any, tmp_path: Path) -> None:
    report = replayed(said, tmp_path / "a.json", "--until", "10s")
    assert report["errors"] > 0
    assert report["errors_by_kind"] == {"timeout": report["errors"]}
    assert report["attainment"]["both"] < 1


def test_replay_needs_a_place_or_a_simulation(refused: Any) -> None:
    assert "--url --simulate" in refused("replay", "--trace", "builtin:chat")
    assert "--simulate needs --model" in refused("replay", "--simulate", "--trace", "builtin:chat")
    text = refused("replay", "--simulate", "--model", "opt-13b", "--trace", "builtin:chat")
    assert "--simulate needs --gpu" in text


def test_compare_shows_both_and_the_difference(said: Any, tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    replayed(said, a)
    said("simulate", *BASE, "--trace", "builtin:chat?rate=2&requests=80", "--json", str(b))
    text = said("compare", str(a), str(b))
    assert f"A {a}: builtin:chat?rate=2&requests=80 at simulated" in text
    for word in ("first token (TTFT) p90", "both kept", "points", "B against A"):
        assert word in text
    found = json.loads(said("compare", str(a), str(a), "--json"))
    assert found["schema"] == "disagg.dev/comparison/v1"
    assert all(figure["difference"] == 0 for figure in found["figures"])


def test_compare_warns_of_what_can_not_be_compared(said: Any, tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    replayed(said, a)
    replayed(said, b, "--slo-ttft", "1s")
    assert "the promises (SLOs) differ" in said("compare", str(a), str(b))


@pytest.mark.parametrize(
    ("text", "words", "status"),
    [('{"schema": "x"}', "schema is 'x'", 2), ("[1]", "JSON object", 1), ("no", "no JSON", 1)],
)
def test_what_is_no_report_is_refused(refused: Any, tmp_path: Path, text: str, words: str, status: int) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert words in refused("compare", str(path), str(path), status=status)
    assert "no such file" in refused("compare", str(tmp_path / "b.json"), str(path), status=1)


def test_what_sets_a_role_apart_needs_that_role(refused: Any, said: Any) -> None:
    text = refused("simulate", *BASE, *LENGTHS, "--rate", "1", "--mode", "colocated", "--decode-gpu", "h100")
    assert "--decode-gpu does not go with --mode colocated" in text
    flags = ("--ratios", "1W,1P1D", "--decode-gpu", "h100", "--rate", "1", "--requests", "20")
    assert "does not go" not in said("sweep", *BASE, *LENGTHS, *flags)


@pytest.mark.parametrize(
    ("where", "flags", "place"),
    [
        (("--simulate", "--model", "opt-13b", "--gpu", "a100-80gb"), ("--time-scale", "5"), "--url"),
        (("--simulate", "--model", "opt-13b", "--gpu", "a100-80gb"), ("--timeout", "1s"), "--url"),
        (("--simulate", "--model", "opt-13b", "--gpu", "a100-80gb"), ("--prompts", "text"), "--url"),
        (("--url", "http://127.0.0.1:1"), ("--prefill", "3"), "--simulate"),
        (("--url", "http://127.0.0.1:1"), ("--gpu", "h100"), "--simulate"),
        (("--url", "http://127.0.0.1:1"), ("--fault", "kill:decode-0@1"), "--simulate"),
    ],
)
def test_a_replay_refuses_flags_of_the_other_kind(
    refused: Any, where: tuple[str, ...], flags: tuple[str, ...], place: str
) -> None:
    told = refused("replay", *where, "--trace", "builtin:chat?rate=1&requests=2", *flags)
    assert f"{flags[0]} is for {place}, and would do nothing here" in told
