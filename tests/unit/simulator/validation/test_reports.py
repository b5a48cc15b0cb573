"""`disagg calibrate` and `disagg validate` on real measurements.

Where DISAGG_DATA names a folder with `measurements/` in it, those files are used; otherwise a made table and a made run
of the same format stand in for them, and the printed line says so. Nothing is skipped either way.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cli.main import main


@dataclass(frozen=True)
class Data:
    """A folder of measurements, and whether they are real."""

    folder: str
    real: bool


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, silicon_lines: list[str], made_run: Any) -> Data:
    given = os.environ.get("DISAGG_DATA")
    if given and (Path(given) / "measurements" / "silicon.csv").exists():
        print("measurements: those of DISAGG_DATA")
        return Data(folder=str(Path(given) / "measurements"), real=True)
    print("measurements: made ones, DISAGG_DATA names none")
    folder = tmp_path_factory.mktemp("measurements")
    (folder / "silicon.csv").write_text("\n".join(silicon_lines) + "\n")
    (folder / "made_meta.json").write_text(made_run.meta)
    (folder / "made_requests.jsonl").write_text("\n".join(made_run.lines) + "\n")
    return Data(folder=str(folder), real=False)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, silicon_lines: list[str]) -> str:
    """A folder with a small made table, for what does not depend on the figures: a fit takes seconds."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "silicon.csv").write_text("\n".join(silicon_lines[:37]) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def profile(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "calibration.yaml"
    assert main(["calibrate", data.folder, "--out", str(path)]) == 0
    return path


@pytest.fixture
def validate(data: Data, profile: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def call(*more: str) -> tuple[int, str]:
        capsys.readouterr()  # what `calibrate` has printed
        status = main(["validate", data.folder, "--profile", str(profile), *more])
        return status, capsys.readouterr().out

    return call


def test_tpot_of_held_out_concurrencies_is_within_ten_percent(validate: Callable[..., tuple[int, str]]) -> None:
    status, text = validate("--loop-every", "0", "--json")
    assert status == 0
    (silicon,) = json.loads(text)["silicon"]
    calibrated = silicon["models"]["calibrated"]
    assert calibrated["tpot_held_out"]["all"]["count"] == silicon["held_out"] > 80
    assert calibrated["tpot_held_out"]["all"]["mape"] <= 0.10
    assert all(errors["mape"] <= 0.10 for errors in calibrated["tpot_held_out"]["by_engine"].values())
    assert calibrated["tpot_held_out"]["all"]["mape"] < silicon["models"]["roofline"]["tpot_held_out"]["all"]["mape"]


def test_groups_held_out_are_reported_by_name(validate: Callable[..., tuple[int, str]]) -> None:
    _, text = validate("--loop-every", "0", "--json")
    (silicon,) = json.loads(text)["silicon"]
    groups = silicon["groups_held_out"]
    assert sum(errors["count"] for errors in groups["by_group"].values()) == groups["all"]["count"] == silicon["rows"]
    assert "llama-3.1-70b h100 vllm" in groups["by_group"]


def test_the_loop_gives_ttft_and_agrees_with_the_closed_form(validate: Callable[..., tuple[int, str]]) -> None:
    _, text = validate("--loop-every", "20", "--json")
    (silicon,) = json.loads(text)["silicon"]
    calibrated = silicon["models"]["calibrated"]
    assert calibrated["loop_ttft"]["all"]["count"] == calibrated["loop_tpot"]["all"]["count"] >= 5
    assert calibrated["loop_against_closed_form"]["mape"] < 0.15


def test_a_model_without_coefficients_refuses_every_row_and_says_why(
    validate: Callable[..., tuple[int, str]],
) -> None:
    _, text = validate("--loop-every", "0", "--json")
    (silicon,) = json.loads(text)["silicon"]
    fitted = silicon["models"]["fitted"]
    assert fitted["refused"] == silicon["rows"]
    assert fitted["tpot"] is None
    assert "a100-80gb" in fitted["reason"]


def test_a_recorded_run_is_compared_request_by_request(validate: Callable[..., tuple[int, str]]) -> None:
    _, text = validate("--loop-every", "0", "--json")
    (run,) = json.loads(text)["runs"]
    calibrated = run["models"]["calibrated"]
    assert set(calibrated["held_out"]) == {"ttft_seconds", "tpot_seconds", "end_to_end_seconds"}
    for quantity in calibrated["held_out"].values():
        assert quantity["requests"]["count"] == run["requests"] - run["trained_on"]
        assert set(quantity["measured"]) == {"mean", "p50", "p90", "p99"}
    assert calibrated["held_out"]["end_to_end_seconds"]["requests"]["mape"] <= 0.10
    assert calibrated["held_out"]["tpot_seconds"]["requests"]["mape"] <= 0.10
    roofline = run["models"]["roofline"]
    assert roofline["held_out"]["end_to_end_seconds"]["requests"]["mape"] > 0.10


def test_the_same_data_give_the_same_bytes(few: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    printed = []
    for path in profiles:
        assert main(["calibrate", few, "--out", str(path)]) == 0
        capsys.readouterr()
        assert main(["validate", few, "--profile", str(profiles[0]), "--loop-every", "10", "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert profiles[0].read_bytes() == profiles[1].read_bytes()
    assert few not in profiles[0].read_text()
    assert printed[0] == printed[1]


def test_without_a_profile_the_constants_are_fitted_on_the_spot(
    few: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calibration.yaml"
    assert main(["calibrate", few, "--out", str(path)]) == 0
    capsys.readouterr()
    found = []
    for more in ((), ("--profile", str(path))):
        assert main(["validate", few, "--loop-every", "0", "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out)["silicon"])
    assert found[0] == found[1]


def test_tables_for_people_hold_the_figures(validate: Callable[..., tuple[int, str]]) -> None:
    status, text = validate("--loop-every", "50")
    assert status == 0
    for words in ("rows held out", "whole groups held out", "end to end", "TTFT, batching loop", "concurrency 9-32"):
        assert words in text


def test_a_profile_is_versioned_and_says_what_it_was_made_from(profile: Path) -> None:
    document = yaml.safe_load(profile.read_text())
    assert (document["kind"], document["version"]) == ("disagg-calibration", 1)
    assert "silicon.csv" in document["sources"]
    assert all(entry["fit"]["rows"] >= 1 for entry in document["engines"])


@pytest.mark.parametrize("command", [["validate"], ["calibrate", "--out", "unused.yaml"]])
def test_data_that_is_none_is_refused(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert main([*command, str(tmp_path)]) == 2
    assert "holds no measurements" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "notes.txt")]) == 2
    assert "is no measurement" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "absent.csv")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_malformed_row_ends_the_command_with_its_line(
    silicon_lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n".join([*silicon_lines[:5], silicon_lines[5].replace(",agg,", ",agg,x")]) + "\n")
    assert main(["validate", str(table)]) == 2
    assert "table.csv, line 6: isl is 'x1024'" in capsys.readouterr().err


def test_split_rows_are_told_one_by_one(
    silicon_lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = [f"{role}_{field}" for role in ("prefill", "decode") for field in ("num_workers", "tp_size", "batch_size")]
    split = silicon_lines[1].replace(",agg,", ",disagg,")
    table = tmp_path / "table.csv"
    lines = [f"{line}," + ",".join([""] * len(roles)) for line in silicon_lines[1:40]]
    table.write_text("\n".join([",".join([silicon_lines[0], *roles]), *lines, f"{split},2,1,1,3,2,32"]) + "\n")
    assert main(["validate", str(table), "--loop-every", "0", "--json"]) == 0
    (silicon,) = json.loads(capsys.readouterr().out)["silicon"]
    (row,) = silicon["split"]
    assert row["layout"] == "2P tp1 3D tp2"
    assert row["tpot_seconds"]["modelled"] > 0
    assert silicon["rows"] == 39


def test_constants_of_a_run_alone_say_nothing_of_a_table(
    made_run: Any, silicon_lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made_meta.json").write_text(made_run.meta)
    (tmp_path / "made_requests.jsonl").write_text("\n".join(made_run.lines) + "\n")
    (tmp_path / "table.csv").write_text("\n".join(silicon_lines) + "\n")
    profile = tmp_path / "run.json"
    assert main(["calibrate", str(tmp_path / "made_requests.jsonl"), "--out", str(profile)]) == 0
    assert json.loads(profile.read_text())["engines"][0]["gpu"] == "rtx-4090"
    capsys.readouterr()
    table = str(tmp_path / "table.csv")
    assert main(["validate", table, "--profile", str(profile), "--loop-every", "0", "--json"]) == 0
    (silicon,) = json.loads(capsys.readouterr().out)["silicon"]
    calibrated = silicon["models"]["calibrated"]
    assert calibrated["refused"] == silicon["rows"]
    assert "unknown measured engine" in calibrated["reason"]
    assert main(["validate", table, "--profile", str(tmp_path / "absent.yaml")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_kernel_tables_that_are_not_installed_are_asked_for(
    few: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("disagg_cli.kernels.find_spec", lambda name: None)
    assert main(["validate", few, "--loop-every", "0", "--kernels"]) == 2
    assert "disagg[kernels]" in capsys.readouterr().err
