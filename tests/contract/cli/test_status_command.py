"""`disagg status` against the control API of the process runtime."""

import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from disagg_cli.main import main
from disagg_contract.control import STATUS_PATH, Condition, Event, InstanceStatus, RuntimeStatus, Scale
from disagg_contract.labels import Role
from disagg_contract.ports import METRICS_PATH
from disagg_operator.shell.local.state import RunningState, default_state_dir, held, write_state

Captured = pytest.CaptureFixture[str]


def status_of(*, ready: int = 2) -> RuntimeStatus:
    return RuntimeStatus(
        deployment="demo",
        model="llama-3-8b",
        router_url="http://127.0.0.1:8000",
        planner_url="http://127.0.0.1:9091",
        control_url="http://127.0.0.1:7000",
        state_dir="/tmp/demo",
        groups=(
            Scale(role=Role.PREFILL, replicas=2, resource_version="4", current=2, ready=ready),
            Scale(role=Role.DECODE, replicas=1, resource_version="5", current=1, ready=1),
        ),
        instances=(
            InstanceStatus("demo-prefill-0", Role.PREFILL, "Ready", "http://127.0.0.1:8101", 11, "/tmp/demo/p0.log"),
        ),
        conditions=(
            Condition("Ready", "True" if ready == 2 else "False", "AllReady", f"{ready + 1} of 3 instances serve"),
            Condition("MetricsAvailable", "False", "Stale", "no sample since 14:02"),
        ),
        events=(
            (time.time() - 300, Event("Normal", "Started", "2 prefill [and] 1 decode")),
            (time.time() - 12, Event("Normal", "TPOTAboveSLO", "decode 1 -> 2: TPOT 61 ms is over its SLO")),
        ),
    )


class Control:
    """A control API with one document, and a worker's metrics beside it."""

    def __init__(self) -> None:
        self.document = status_of().to_json()
        self.metrics = b""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                body = {STATUS_PATH: self.document, METRICS_PATH: self.metrics}[handler.path]
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(handler, *_: object) -> None:
                return

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def holding(folder: Path, url: str) -> AbstractContextManager[None]:
    """What a runtime does with its state folder."""
    stack = ExitStack()
    stack.enter_context(held(folder))
    write_state(RunningState(deployment="demo", pid=1, control_url=url, router_url="", state_dir=str(folder)))
    return stack


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default state folder of the deployment `demo`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return default_state_dir("demo")


@pytest.fixture
def control(folder: Path) -> Iterator[Control]:
    found = Control()
    with holding(folder, found.url):
        yield found
    found.close()


def test_it_shows_roles_decisions_and_where_to_look(control: Control, capsys: Captured) -> None:
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    for text in (
        "demo serves llama-3-8b at http://127.0.0.1:8000",
        "planner: MetricsAvailable False (Stale) no sample since 14:02",
        "5m ago  Started: 2 prefill [and] 1 decode",
        "ago  TPOTAboveSLO: decode 1 -> 2: TPOT 61 ms is over its SLO",
        "logs and state: /tmp/demo",
        "http://127.0.0.1:8101",
    ):
        assert text in out
    assert re.search(r"^planner: last change \d+s ago, TPOTAboveSLO: decode 1 -> 2", out, re.MULTILINE)


def test_it_shows_how_far_the_workers_loops_lag(control: Control, capsys: Captured) -> None:
    status = status_of()
    instance = replace(status.instances[0], url=control.url)
    control.document = replace(status, instances=(instance, *status.instances)).to_json()
    control.metrics = b"""\
disagg_worker_iterations_total{model="m"} 400.0
disagg_worker_late_iterations_total{model="m"} 4.0
disagg_worker_clock_lag_seconds_bucket{le="0.001",model="m"} 396.0
disagg_worker_clock_lag_seconds_bucket{le="0.05",model="m"} 400.0
"""
    assert main(["status"]) == 0
    assert "worker loops: 1.0% of 400 iterations late by over a fifth of a step; " in capsys.readouterr().out


def test_it_shows_as_many_events_as_asked_for(control: Control, capsys: Captured) -> None:
    assert main(["status", "--events", "1"]) == 0
    out = capsys.readouterr().out
    assert "TPOTAboveSLO" in out
    assert "Started" not in out


def test_it_fails_while_an_instance_is_missing(control: Control, capsys: Captured) -> None:
    control.document = status_of(ready=1).to_json()
    assert main(["status"]) == 1


def test_json_is_the_contracts_document(control: Control, capsys: Captured) -> None:
    assert main(["status", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["deployment"] == "demo"
    assert RuntimeStatus.from_json(out).groups == status_of().groups


def test_a_deployment_is_found_by_name_by_folder_or_alone(control: Control, folder: Path, capsys: Captured) -> None:
    for arguments in ([], ["demo"], ["--state-dir", str(folder)]):
        assert main(["status", *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["deployment"] == "demo"


def test_one_of_several_has_to_be_named(control: Control, folder: Path, capsys: Captured) -> None:
    with holding(folder.parent / "other", control.url):
        assert main(["status"]) == 2
        assert "several deployments run (demo, demo); name one" in capsys.readouterr().err
        assert main(["status", "demo"]) == 0


def test_nothing_running_is_one_sentence(folder: Path, capsys: Captured) -> None:
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        "disagg status: nothing runs; start a deployment with disagg up FILE, "
        "or name the state folder of one that runs elsewhere with --state-dir\n"
    )
    assert main(["status", "demo"]) == 1
    assert capsys.readouterr().err == (
        f"disagg status: nothing runs in {folder}; start a deployment with disagg up FILE, "
        "or name another state folder with --state-dir\n"
    )
    assert main(["status", "--state-dir", "/no/such"]) == 1
    assert capsys.readouterr().err == (
        "disagg status: nothing runs in /no/such; start a deployment with disagg up FILE\n"
    )


def test_a_runtime_that_does_not_answer_is_one_sentence(folder: Path, capsys: Captured, unused_tcp_port: int) -> None:
    with holding(folder, f"http://127.0.0.1:{unused_tcp_port}"):
        assert main(["status"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_an_answer_of_another_version_is_named(control: Control, capsys: Captured) -> None:
    control.document = b'{"surprise": 1}'
    assert main(["status"]) == 1
    assert "status of the runtime" in capsys.readouterr().err
