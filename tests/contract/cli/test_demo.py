"""`disagg demo` as a stranger runs it: no terminal, another folder, nothing installed beside the package."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import yaml

from disagg_cli.main import main

ROOT = Path(__file__).parents[3]
MARK = "DISAGG_TEST_MARK"


def start(folder: Path, mark: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "disagg_cli.main", "demo", "--state-dir", str(folder / "demo"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_over(mark: str) -> list[int]:
    """Processes that carry the mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_for_line(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"no line {start!r}; {process.communicate()}")


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


def test_pk4_the_demo_runs_end_to_end_and_leaves_nothing(tmp_path: Path, mark: str) -> None:
    process = start(tmp_path, mark, "--seconds", "4", "--rate", "4")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert " s: 2 prefill and 2 decode instances behind http://127.0.0.1:" in out
    assert "first token (TTFT)" in out
    assert "0 truncated, 0 errors" in out
    assert re.search(r"^worker loops: \d+\.\d% of \d+ iterations late by over a fifth of a step", out, re.MULTILINE)
    assert "where to look" in out
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["completed"] == report["requests"] > 0
    assert report["slo"] == {"ttft_seconds": 0.5, "tpot_seconds": 0.05}
    assert (tmp_path / "demo" / "logs" / "router.log").is_file()
    assert left_over(mark) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_demo_takes_its_processes_with_it(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    process = start(tmp_path, mark)
    wait_for_line(process, "starting")
    deadline = time.monotonic() + 120
    while len(left_over(mark)) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    process.communicate(timeout=120)
    while left_over(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(mark) == []


def test_pk1_the_packaged_deployment_is_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--print-deployment"]) == 0
    shipped = capsys.readouterr().out
    assert shipped == (ROOT / "examples" / "demo.yaml").read_text()
    assert yaml.safe_load(shipped)["spec"]["prefill"]["autoscaling"]["min"] == 2


def test_a_folder_that_cant_be_used_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--state-dir", str(tmp_path / "file" / "demo")]) == 2
    assert capsys.readouterr().err == f"disagg demo: {tmp_path}/file/demo: not a directory\n"
