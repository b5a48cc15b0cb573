"""The command line without servers: help, sentences, exit statuses."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from errno import EADDRINUSE, ENOENT
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_cli.commands.program import explain
from disagg_cli.errors import UsageError
from disagg_cli.main import main
from disagg_cli.parsing import count, duration, positive
from disagg_cli.profiles import profile_for
from disagg_cli.registry import COMMANDS
from disagg_contract import __version__
from disagg_contract.config import PlannerConfig, WorkerConfig
from disagg_contract.profile import Profile

Captured = pytest.CaptureFixture[str]


def sentence(capsys: Captured, *arguments: str, status: int = 2) -> str:
    """What a refused command line prints: one line on the error stream and nothing else."""
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.rstrip("\n")


def test_help_lists_every_command(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name} " in out
        assert command.summary in out


def test_no_command_is_a_question(capsys: Captured) -> None:
    assert main([]) == 2
    assert "usage: disagg COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_examples_of_itself(name: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    examples = text.partition("examples:\n")[2].splitlines()
    assert examples
    assert any(line.strip().startswith(f"disagg {name}") for line in examples)
    assert "Settings of" not in text or "DISAGG_" in text


def test_help_of_a_command(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["help", "replay"])
    assert capsys.readouterr().out.startswith("usage: disagg replay")


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    found = subprocess.run(
        [f"{sys.executable} -m disagg_cli.main crds | head -n 1"],
        shell=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.stdout.startswith("#")
    assert found.stderr == ""


def test_pk3_the_version_is_the_packages(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"disagg {__version__}\n"


def test_help_imports_no_program() -> None:
    """Fast help: nothing heavy is loaded before a command is chosen."""
    code = (
        "import sys; from disagg_cli.main import main; main(['--help']);"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in "
        "('numpy', 'aiohttp', 'kopf', 'kubernetes', 'pydantic', 'rich', 'statsmodels', 'asyncio')), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stderr.strip() == "[]"


def test_a_program_that_still_loads_can_be_terminated() -> None:
    """The first process of a container gets no signal that it has no handler for."""
    code = (
        "import os, signal, sys, time; from disagg_cli.main import main; sys.argv = ['disagg', '--version']; main();"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 143, found.stderr
    assert found.stderr == ""


def test_unknown_commands_list_the_known_ones(capsys: Captured) -> None:
    text = sentence(capsys, "relpay")
    assert "did you mean replay?" in text
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("replay", "--trace", "builtin:chat"), "one of the arguments --url --simulate is required"),
        (
            ("replay", "--url", "u", "--trace", "builtin:chat", "--limt", "3"),
            "unknown argument --limt; did you mean --limit?",
        ),
        (("gpus", "--colour"), "unknown argument --colour; see disagg gpus --help"),
        (("replay", "--url", "u", "--trace", "builtin:chta"), "did you mean chat? known are chat, code"),
        (("replay", "--url", "u", "--trace", "builtin:chat?rate=0"), "rate is 0, a number above 0 is needed"),
        (("replay", "--url", "u", "--trace", "/no/such.csv"), "/no/such.csv: no such file or directory"),
        (("replay", "--url", "u", "--trace", "t", "--limit", "0"), "--limit: '0' is no whole number of at least 1"),
        (("replay", "--url", "u", "--trace", "t", "--seed", "x"), "--seed: 'x' is no whole number"),
        (("demo", "--seed", "1.5"), "--seed: '1.5' is no whole number"),
        (("replay", "--url", "u", "--trace", "t", "--rate-scale", "nan"), "--rate-scale: 'nan' is no number above 0"),
        (("replay", "--url", "u", "--trace", "t", "--slo-ttft", "fast"), "'fast' is no duration above 0"),
        (("replay", "--url", "u", "--trace", "t", "--format", "vllm"), "invalid choice: 'vllm'"),
        (("replay", "--url", "ftp://u", "--trace", "builtin:chat"), "'ftp://u' is no URL of a server"),
        (("up", "x.yaml", "--log-level", "loud"), "'loud' is no known log level; known are debug, info"),
        (("router", "--log-level", "loud"), "--log-level=loud: use one of debug, info, warning, error"),
        (("worker", "--time-scale", "0"), "--time-scale=0: use a number above 0"),
        (("worker", "--role", "decoder"), "--role=decoder: use one of prefill, decode, worker"),
        (("planner", "--model", "gpt-9"), "unknown model 'gpt-9'; known are: deepseek-v3"),
        (("planner", "--prefill-gpu", "h999"), "unknown GPU 'h999'; known are: a100-80gb"),
        (("planner", "--model", "opt-66b", "--prefill-gpu", "a100-80gb"), "opt-66b needs 132"),
        (("planner", "--profile", "/no/profile.json"), "/no/profile.json: no such file or directory"),
        (("gpus", "--catalogue", "/no/such.yaml"), "/no/such.yaml: no such file or directory"),
    ],
)
def test_mistakes_are_one_sentence(capsys: Captured, arguments: tuple[str, ...], problem: str) -> None:
    text = sentence(capsys, *arguments)
    assert text.startswith(f"disagg {arguments[0]}: ")
    assert problem in text


def test_sm7_a_malformed_trace_names_file_and_line(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16,1\n")
    text = sentence(capsys, "replay", "--url", "u", "--trace", str(path))
    assert text == f"disagg replay: {path}, line 3: 2 columns, the header has 3"


def test_nothing_listening_is_one_sentence(capsys: Captured, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    text = sentence(capsys, "replay", "--url", url, "--trace", "builtin:chat", status=1)
    assert text == f"disagg replay: nothing answers at {url} (connection refused); is the router running there?"


def test_the_worker_names_its_wrong_settings_all_at_once(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISAGG_WORKER_KV_PORT", "many")
    assert main(["worker", "--tensor", "0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines) == [
        "disagg worker: --tensor=0: use a number from 1 to 64",
        "disagg worker: DISAGG_WORKER_KV_PORT=many: use a whole number",
    ]


def test_a_port_in_use_names_the_port_and_its_flag() -> None:
    bound = "error while attempting to bind on address ('127.0.0.1', 5600): address already in use"
    text = str(explain(OSError(EADDRINUSE, bound), WorkerConfig()))
    assert text == "port 5600 on 127.0.0.1 is in use; choose another with --kv-port"
    text = str(explain(OSError(EADDRINUSE, "Address already in use"), WorkerConfig(host="127.0.0.1", port=7)))
    assert text == "port 7 on 127.0.0.1 is in use; choose another with --port"


def test_a_missing_file_of_a_program_is_a_usage_error() -> None:
    error = explain(OSError(ENOENT, "No such file or directory", "tokenizer.json"), WorkerConfig())
    assert isinstance(error, UsageError)
    assert str(error) == "tokenizer.json: no such file or directory"


@pytest.mark.parametrize(("name", "expected"), [("gpus", "a100-80gb"), ("models", "opt-13b"), ("links", "nvlink")])
def test_pk1_catalogues_are_in_the_package(name: str, expected: str, capsys: Captured) -> None:
    assert main([name]) == 0
    assert expected in capsys.readouterr().out
    assert main([name, "--json"]) == 0
    assert expected in [entry["name"] for entry in json.loads(capsys.readouterr().out)]


def test_a_users_catalogue_adds_gpus(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "mine.yaml"
    fields_of_mine = {
        "flops": 1e15, "memory_bytes": 1e11, "memory_bandwidth": 4e12, "pcie_bandwidth": 6e10, "load_bandwidth": 2e9,
    }  # fmt: skip
    path.write_text(yaml.safe_dump({"gpus": {"mine": fields_of_mine}}))
    assert main(["gpus", "--catalogue", str(path)]) == 0
    assert "mine" in capsys.readouterr().out
    path.write_text("gpus: {mine: {flops: -1}}")
    assert "gpus.mine" in sentence(capsys, "gpus", "--catalogue", str(path))


def test_crds_are_printed_from_the_package(capsys: Captured) -> None:
    assert main(["crds"]) == 0
    names = {document["metadata"]["name"] for document in yaml.safe_load_all(capsys.readouterr().out)}
    assert names == {"disaggdeployments.disagg.dev", "disaggroups.disagg.dev", "disagggroups.disagg.dev"} & names
    assert len(names) == 2


def test_the_planners_profile_is_computed_for_its_instances() -> None:
    profile = profile_for(PlannerConfig(model="opt-13b", prefill_gpu="a100-80gb", decode_gpu="h100", decode_tensor=2))
    assert (profile.prefill_gpu, profile.decode_gpu, profile.decode_tensor) == ("a100-80gb", "h100", 2)
    assert profile.prefill
    assert profile.decode


def test_the_planners_profile_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    written = profile_for(PlannerConfig(model="opt-13b", prefill_gpu="a100-80gb", decode_gpu="a100-80gb"))
    path.write_bytes(written.to_json())
    assert profile_for(PlannerConfig(profile=str(path))) == written
    assert isinstance(written, Profile)
    path.write_text("{}")
    with pytest.raises(UsageError, match="profile"):
        profile_for(PlannerConfig(profile=str(path)))


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("0.25", 0.25), ("2s", 2), ("1.5m", 90), ("1h", 3600), (".5 s", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("kind", "text"), [(duration, "0"), (duration, "-1s"), (positive, "inf"), (count, "1.5")])
def test_what_is_no_value(kind: Any, text: str) -> None:
    with pytest.raises(Exception, match="is no"):
        kind(text)


def test_every_setting_of_the_worker_is_a_flag(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["worker", "--help"])
    text = capsys.readouterr().out
    for item in fields(WorkerConfig):
        assert "--" + item.name.replace("_", "-") in text
