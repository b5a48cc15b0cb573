"""Addresses that cannot be had: every command says so in one sentence, the same one, and ends with 2."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_cli.main import main

WORKER = ("worker", "--model", "opt-13b", "--gpu", "a100-80gb", "--startup-seconds", "0")
ROUTER = ("router", "--discovery-file", "/no/such/file.json")
PLANNER = (
    *("planner", "--model", "opt-13b", "--prefill-gpu", "a100-80gb", "--decode-gpu", "a100-80gb"),
    *("--control-url", "http://127.0.0.1:9", "--deployment", "d", "--predictor", "constant"),
)
EXAMPLE = Path(__file__).parents[3] / "examples" / "demo.yaml"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("disagg ")]
    assert len(lines) == 1
    return lines[0].removeprefix(f"disagg {arguments[0]}: ")


@pytest.mark.parametrize("command", [WORKER, ROUTER, PLANNER], ids=["worker", "router", "planner"])
def test_a_port_in_use(command: tuple[str, ...], taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = sentence(capsys, *command, "--host", "127.0.0.1", "--port", str(taken))
    assert found == f"port {taken} on 127.0.0.1 is in use; choose another with --port"


def test_a_kv_port_in_use(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = sentence(capsys, *WORKER, "--host", "127.0.0.1", "--port", "0", "--kv-port", str(taken))
    assert found == f"port {taken} on 127.0.0.1 is in use; choose another with --kv-port"


def test_the_port_of_a_local_deployment_in_use(taken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = sentence(capsys, "up", str(EXAMPLE), "--state-dir", str(tmp_path), "--port", str(taken))
    assert found == f"port {taken} on 127.0.0.1 is in use; choose another with --port"


@pytest.mark.parametrize("command", [WORKER, ROUTER, PLANNER], ids=["worker", "router", "planner"])
@pytest.mark.parametrize("host", ["300.1.1.1", "192.0.2.1"])
def test_an_address_of_nobody_here(command: tuple[str, ...], host: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = sentence(capsys, *command, "--host", host, "--port", "0")
    assert found.startswith(f"--host={host}: ")
    assert found.endswith("; use an address of this machine, like 127.0.0.1, or 0.0.0.0 for all")
