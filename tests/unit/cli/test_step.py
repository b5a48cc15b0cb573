"""`disagg step`: its JSON is a contract, its refusals name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disagg_cli.main import main
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, Fitted, Roofline

Captured = pytest.CaptureFixture[str]
BASE = ("step", "--model", "opt-13b", "--gpu", "a100-80gb")


def answer(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: Captured, *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_json_holds_the_contract(capsys: Captured) -> None:
    found = answer(capsys, *BASE, "--prefill", "1024", "--decode", "32", "--context", "1024")
    cost = Roofline(Instance(model=default().model("opt-13b"), gpu=default().gpu("a100-80gb"))).iteration_seconds(
        BatchShape(chunks=(Chunk(0, 1024),), decode_sequences=32, decode_context_tokens=32 * 1024)
    )
    assert found["seconds"] == cost.seconds
    assert found["compute_seconds"] == cost.compute_seconds
    assert found["memory_seconds"] == cost.memory_seconds
    assert found["bound"] == cost.bound == "compute"
    assert found["seconds"] == pytest.approx(0.140, rel=0.01), "REFERENCE row 5"
    assert found["fits"] is True


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (("--decode", "1", "--context", "512"), 0.0172),  # row 1
        (("--prefill", "755"), 0.104),  # row 4
        (("--decode", "32", "--context", "855"), 0.0307),
    ],
)
def test_rows_of_the_reference(capsys: Captured, arguments: tuple[str, ...], seconds: float) -> None:
    assert answer(capsys, *BASE, *arguments)["seconds"] == pytest.approx(seconds, rel=0.01)


def test_several_prompts_with_cached_tokens(capsys: Captured) -> None:
    found = answer(capsys, *BASE, "--prefill", "512,256", "--cached", "0,1024")
    assert found["new_tokens"] == 768
    assert found["kv_tokens"] == 768 + 1024
    alone = answer(capsys, *BASE, "--prefill", "512,256")
    assert found["seconds"] > alone["seconds"]
    assert answer(capsys, *BASE, "--prefill", "512,256", "--cached", "64")["kv_tokens"] == 768 + 128


def test_parallelism_and_precision(capsys: Captured) -> None:
    work = ("--prefill", "512")
    one = answer(capsys, *BASE, *work)
    three = answer(capsys, *BASE, *work, "--tensor", "3", "--pipeline", "2")
    assert three["gpus"] == 6
    assert three["seconds"] < one["seconds"]
    assert three["stage_seconds"] == three["seconds"] / 2
    h100 = ("step", "--model", "llama-3.1-8b", "--gpu", "h100", *work)
    narrow = answer(capsys, *h100, "--weights", "fp8", "--kv", "fp8")
    assert narrow["kv_capacity_tokens"] > 2 * answer(capsys, *h100)["kv_capacity_tokens"]
    assert narrow["seconds"] < answer(capsys, *h100)["seconds"]


def test_deepseek_on_320_gpus(capsys: Captured) -> None:
    spread = ("--tensor", "4", "--data-parallel", "80", "--expert-parallel", "320", "--weights", "fp8")
    found = answer(
        capsys, "step", "--model", "deepseek-v3", "--gpu", "h200", *spread, "--decode", "10240", "--context", "4096"
    )
    assert found["gpus"] == 320
    assert found["communication_seconds"] > 0
    assert found["fits"] is True


def test_other_time_models(capsys: Captured, tmp_path: Path) -> None:
    fitted = answer(capsys, *BASE, "--time-model", "fitted", "--decode", "8", "--context", "512")
    instance = Instance(model=default().model("opt-13b"), gpu=default().gpu("a100-80gb"))
    shape = BatchShape(decode_sequences=8, decode_context_tokens=8 * 512)
    assert fitted["seconds"] == Fitted(instance).iteration_seconds(shape).seconds
    slower = answer(capsys, *BASE, "--time-model", "fitted", "--backend", "vllm", "--decode", "8", "--context", "512")
    assert slower["seconds"] > fitted["seconds"]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    found = answer(capsys, *BASE, "--time-model", "profile", "--profile", str(path), "--prefill", "150")
    assert found["seconds"] == pytest.approx(0.03)


def test_calibrated_constants(capsys: Captured, tmp_path: Path) -> None:
    constants = {
        "compute_efficiency": 0.7, "memory_efficiency": 0.8, "kv_factor": 1.0, "layer_seconds": 0.001 / 40,
        "sequence_seconds": 0.0, "tensor_penalty": 0.15, "half_efficiency_tokens": 100.0,
    }  # fmt: skip
    ranges = {name: [1, 2] for name in ("concurrency", "input_tokens", "output_tokens", "tensor")}
    pooled = {"constants": constants, "fit": {"rows": 1, "mape": 0.0, **ranges}}
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"kind": "disagg-calibration", "version": 1, "engines": [], "pooled": pooled}))
    work = ("--decode", "8", "--context", "512")
    found = answer(capsys, *BASE, "--time-model", "calibrated", "--profile", str(path), *work)
    assert found["seconds"] == pytest.approx(answer(capsys, *BASE, *work)["seconds"]), "the reference's constants"


PROFILE = {
    "model": "opt-13b",
    "prefill_gpu": "a100-80gb",
    "decode_gpu": "a100-80gb",
    "prefill_tensor": 1,
    "prefill_pipeline": 1,
    "decode_tensor": 1,
    "decode_pipeline": 1,
    "kv_capacity_tokens": 58594,
    "kv_bytes_per_token": 819200,
    "prefill": [
        {"input_tokens": 100, "ttft_seconds": 0.02, "tokens_per_second": 1.0},
        {"input_tokens": 200, "ttft_seconds": 0.04, "tokens_per_second": 1.0},
    ],
    "decode": [{"context_tokens": 100, "batch": 1, "tpot_seconds": 0.01, "tokens_per_second": 1.0}],
}


def test_a_model_that_does_not_fit_is_timed_with_a_warning(capsys: Captured) -> None:
    assert main(["step", "--model", "opt-66b", "--gpu", "a100-80gb", "--prefill", "512", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["seconds"] == pytest.approx(0.371, rel=0.01), "REFERENCE row 11"
    assert found["fits"] is False
    assert "58.0 GB too little; tensor 2 × pipeline 1 would be enough" in err


def test_a_batch_beyond_the_kv_room_is_timed_with_a_warning(capsys: Captured) -> None:
    assert main([*BASE, "--decode", "200", "--context", "1000"]) == 0
    assert "the batch holds 200200 tokens of KV; there is room for 58593" in capsys.readouterr().err


def test_text_says_what_limits_it(capsys: Captured) -> None:
    assert main([*BASE, "--prefill", "512", "--cached", "100", "--pipeline", "2"]) == 0
    out = capsys.readouterr().out
    assert "a prompt of 512 after 100 cached" in out
    assert "bound by compute" in out
    assert "each stage" in out
    assert "overhead    1.00 ms" in out
    assert main([*BASE, "--decode", "1", "--context", "50"]) == 0
    assert "\n1 decode at 50 tokens" in capsys.readouterr().out
    assert main([*BASE, "--decode", "4", "--context", "50"]) == 0
    assert "4 decodes at 50 tokens of context: 1" in capsys.readouterr().out
    assert main([*BASE, "--decode", "4", "--context", "50", "--time-model", "fitted"]) == 0
    out = capsys.readouterr().out
    assert "by the time model fitted" in out
    assert "arithmetic" not in out
    assert main([*BASE, "--prefill", ",".join(["16"] * 20)]) == 0
    assert "20 prompts of 320 tokens in all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "an iteration needs work: --prefill N, --decode B with --context L, or both"),
        (("--decode", "4"), "--decode and --context go together"),
        (("--context", "4", "--prefill", "3"), "--decode and --context go together"),
        (("--prefill", "0"), "--prefill: '0' is no whole number of at least 1"),
        (("--prefill", "512,-1"), "'-1' is no whole number of at least 1"),
        (("--prefill", "nan"), "'nan' is no whole number of at least 1"),
        (("--decode", "0", "--context", "5"), "--decode: '0' is no whole number of at least 1"),
        (("--decode", "1", "--context", "-5"), "--context"),
        (("--prefill", "5", "--cached", "1,2"), "--cached has 2 lengths, --prefill 1"),
        (("--decode", "1", "--context", "5", "--cached", "7"), "--cached is about prompts"),
        (("--prefill", "5", "--tensor", "0"), "--tensor: '0' is no whole number of at least 1"),
        (("--prefill", "5", "--pipeline", "41"), "pipeline is 41; it must be between 1 and the model's 40 layers"),
        (("--prefill", "5", "--data-parallel", "2"), "data_parallel is 2; it must be 1: opt-13b has no experts"),
        (("--prefill", "5", "--weights", "fp7"), "'fp7' is no known precision; did you mean fp"),
        (("--prefill", "5", "--kv", "fp4"), "--kv: 'fp4' is no known precision"),
        (("--prefill", "5", "--time-model", "magic"), "'magic' is no known time model"),
        (("--prefill", "5", "--time-model", "profile"), "--time-model profile needs --profile"),
        (("--prefill", "5", "--time-model", "calibrated"), "--time-model calibrated needs --profile"),
        (("--prefill", "5", "--time-model", "profile", "--profile", "/x"), "/x: no such file"),
        (("--prefill", "5", "--time-model", "calibrated", "--profile", "/x"), "/x: no such file"),
        (
            ("--prefill", "5", "--profile", "/x"),
            "--profile is for --time-model profile or calibrated; the time model is roofline",
        ),
        (("--prefill", "5", "--backend", "vllm"), "--backend is for --time-model fitted or calibrated or kernels"),
        (("--prefill", "5", "--time-model", "fitted", "--tensor", "3"), "tensor is 3; it must be one of those fitted"),
    ],
)
def test_mistakes_are_one_sentence(capsys: Captured, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in refusal(capsys, *BASE, *arguments)


def test_unknown_names_list_the_known(capsys: Captured) -> None:
    assert "known are: a100-80gb" in refusal(capsys, "step", "--model", "opt-13b", "--gpu", "v100", "--prefill", "5")
    assert "unknown model 'gpt'" in refusal(capsys, "step", "--model", "gpt", "--gpu", "h100", "--prefill", "5")
