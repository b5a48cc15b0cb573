"""PK5: what the documents say can be typed as it stands.

Every command line in a shell block of the README, CONTRIBUTING and the READMEs of chart and scripts is looked at: each
``disagg`` command must parse, each ``make`` target and each file must exist. The README's local walk-through is run.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cli.parsing import Parser
from disagg_cli.registry import find

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "charts/disagg/README.md", "hack/README.md", "docs/simulator.md")
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVING = ("up", "status", "replay", "compare")
"""Commands that need something that serves, or compare with it; the others plan."""
FILES = re.compile(r"^(examples|charts|hack|tests|docs|benchmarks)/")


def commands(document: str) -> Iterator[list[str]]:
    """Words of each command line; of a console block only what follows a prompt."""
    for block in BLOCK.findall((ROOT / document).read_text()):
        lines = block.replace("\\\n", " ").splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        for line in lines:
            if prompted and not line.startswith("$ "):
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                yield words


def all_commands() -> list[tuple[str, list[str]]]:
    return [(document, words) for document in DOCUMENTS for words in commands(document)]


def test_documents_have_commands() -> None:
    assert {document for document, _ in all_commands()} == set(DOCUMENTS)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{document}: {' '.join(words)}") for document, words in all_commands()]
)
def test_pk5_command_line_can_be_typed(words: list[str]) -> None:
    while words and (("=" in words[0] and not words[0].startswith("-")) or words[0] in ("sudo", "-E")):
        words = words[1:]
    program = words[0].rpartition("/")[2]
    for word in words:
        if FILES.match(word):
            assert (ROOT / word).exists(), f"{word} does not exist"
    if program == "disagg" and words[1:2] != ["--help"]:
        command = find(words[1]).load()
        parser = Parser(prog="disagg", description=command.DESCRIPTION, examples=command.EXAMPLES)
        command.configure(parser, words[1])
        parser.parse_args(words[2:])
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        asked = {word for word in words[1:] if "=" not in word and not word.startswith("-")}
        assert asked <= targets


def test_pk5_local_walk_through(tmp_path: Path) -> None:
    """``up``, ``status``, ``replay`` and ``curl`` of the README, and the comparison of ``replay`` with the simulator.

    With a free port and a shorter trace.
    """
    lines = [
        words
        for words in commands("README.md")
        if words[0] == "curl" or (words[0].endswith("/disagg") and words[1] in SERVING)
    ]
    up, status, replay, curl, replay_again, simulated, compare = lines
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    home = os.environ | {"XDG_STATE_HOME": str(tmp_path)}

    def typed(words: list[str]) -> list[str]:
        words = [
            word.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
            .replace("seconds=60", "seconds=3")
            .replace("pods.json", str(tmp_path / "pods.json"))
            .replace("plan.json", str(tmp_path / "plan.json"))
            for word in words
        ]
        return [sys.executable, "-m", "disagg_cli.main", *words[1:]] if words[0].endswith("/disagg") else words

    def run(words: list[str]) -> str:
        done = subprocess.run(
            typed(words), cwd=ROOT, env=home, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    log = tmp_path / "up.log"
    with log.open("w") as sink:
        serving = subprocess.Popen([*typed(up), "--port", port], cwd=ROOT, env=home, stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 120
        while "ready at" not in log.read_text():
            assert serving.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        assert "opt-13b" in run(status)
        assert "SLO attainment" in run(replay)
        assert '"completion_tokens":' in run(curl)
        assert "SLO attainment" in run(replay_again)
        assert "SLO attainment" in run(simulated)
        assert "pods.json" in run(compare)
    finally:
        serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0, log.read_text()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=" ".join(words[1:]))
        for words in commands("README.md")
        if words[0].endswith("/disagg") and words[1] not in SERVING
    ],
)
def test_pk5_planning_commands(words: list[str], tmp_path: Path) -> None:
    """``goodput``, ``simulate``, ``sweep`` and ``step`` of the README, as they stand."""
    done = subprocess.run(
        [sys.executable, "-m", "disagg_cli.main", *words[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goodput" in done.stdout or "tokens/s" in done.stdout or "good requests" in done.stdout
