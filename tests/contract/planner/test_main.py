"""The program: settings that are refused, and a whole run as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disagg_contract.config import PlannerConfig, Predictor
from disagg_contract.discovery import DiscoveryFile
from disagg_contract.labels import Role
from disagg_contract.profile import Profile
from disagg_contract.settings import to_args
from disagg_planner import main
from disagg_planner.shell.prometheus import PrometheusSource
from disagg_planner.shell.scrape import ScrapeSource
from disagg_planner.shell.sources import NoSource

CONFIG = PlannerConfig(
    deployment="demo",
    model="m",
    control_url="http://127.0.0.1:9",
    predictor=Predictor.CONSTANT,
    host="127.0.0.1",
    port=0,
)

PROGRAM = """
import sys
from disagg_contract.config import PlannerConfig
from disagg_contract.profile import Profile
from disagg_contract.settings import parse
from disagg_planner.main import run
sys.exit(run(parse(PlannerConfig, sys.argv[2:], {}), Profile.from_json(open(sys.argv[1], "rb").read())))
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill_min": 3, "prefill_max": 2}, "--prefill-min=3 is above --prefill-max=2"),
        ({"control_url": "", "deployment": ""}, "--deployment is empty"),
        ({"gpu_budget": 1}, "--gpu-budget=1: the minimum of both roles takes 2 GPUs"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(
    profile: Profile, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    assert main.run(replace(CONFIG, **changes), profile) == 2
    assert message in capsys.readouterr().err


def test_a_profile_that_cannot_be_used_is_refused(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(CONFIG, replace(profile, prefill=())) == 2
    assert "needs prefill and decode points" in capsys.readouterr().err


def test_outside_of_a_cluster_without_a_control_url_the_way_out_is_named(
    profile: Profile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main.run(replace(CONFIG, control_url=""), profile) == 2
    assert "give --control-url" in capsys.readouterr().err


async def test_hc6_the_source_follows_from_the_settings() -> None:
    for changes, kind in (
        ({"prometheus_url": "http://prom:9090", "router_url": "http://r"}, PrometheusSource),
        ({"router_url": "http://r", "discovery_file": "w.json"}, ScrapeSource),
        ({}, NoSource),
    ):
        source = main.build_source(replace(CONFIG, **changes), namespace="team-a")  # type: ignore[arg-type]
        assert isinstance(source, kind)
        await source.close()


async def until(done: Callable[[], bool], process: asyncio.subprocess.Process, *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert process.returncode is None, "the planner ended early"
        assert time.monotonic() < deadline, "nothing happened for too long"
        await asyncio.sleep(0.05)


async def test_a_whole_run_in_the_process_runtime(
    profile: Profile, api: Any, serve: Any, page: Any, tmp_path: Path
) -> None:
    """Counters that grow like 20 req/s are scaled for, an idle router is scaled down after, SIGTERM ends it with 0."""
    started = [0.0, time.monotonic(), 20.0]

    def text() -> str:
        now = time.monotonic()
        started[0] += (now - started[1]) * started[2]
        started[1] = now
        lines = [f'disagg_router_requests_started_total{{model="m"}} {started[0]}']
        for name, mean in (("input", 1000), ("output", 100)):
            lines += [f'disagg_router_{name}_tokens_sum{{model="m"}} {started[0] * mean}']
            lines += [f'disagg_router_{name}_tokens_count{{model="m"}} {started[0]}']
        return "\n".join(lines) + "\n"

    discovery, saved = tmp_path / "workers.json", tmp_path / "profile.json"
    discovery.write_bytes(DiscoveryFile().to_json())
    saved.write_bytes(profile.to_json())
    config = replace(
        CONFIG,
        control_url=await serve(api.app()),
        router_url=await serve(page(text)),
        discovery_file=str(discovery),
        interval_seconds=0.4,
        scale_down_stabilization_seconds=0.5,
        prefill_max=4,
        decode_max=4,
        slo_ttft_seconds=0.25,
        slo_tpot_seconds=0.1,
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(saved), *to_args(config), stderr=asyncio.subprocess.PIPE
    )
    try:
        await until(lambda: api.scales[Role.PREFILL].replicas >= 3 and api.scales[Role.DECODE].replicas >= 2, process)
        await until(lambda: "LoadForecast" in {event.reason for event in api.events}, process)
        for role in (Role.PREFILL, Role.DECODE):
            scale = api.scales[role]
            api.scales[role] = replace(scale, current=scale.replicas, ready=scale.replicas)
        started[2] = 0.0
        await until(lambda: api.scales[Role.PREFILL].replicas == api.scales[Role.DECODE].replicas == 1, process)
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    assert b"planner stopped" in errors


def test_a_port_in_use_says_so(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main.run(replace(CONFIG, port=port), profile) == 2
    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in capsys.readouterr().err


def test_a_planner_starts_without_the_library_of_its_models() -> None:
    """It takes seconds of CPU to import, which nobody who waits for a first decision has."""
    code = (
        "import sys; from disagg_contract.config import Predictor; from disagg_planner.main import load_predictor;"
        "predictor = load_predictor(Predictor.ARIMA);"
        "predictor.forecast([3.0, 3.4, 2.9, 3.2]), predictor.forecast([2.0] * 9);"
        "print('statsmodels' in sys.modules);"
        "print(predictor.forecast([3.0, 3.4, 2.9, 3.2, 3.1, 2.8, 3.3]).source);"
        "print('statsmodels' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.split() == ["False", "model", "True"]


def test_fits_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    forecast = main.load_predictor(Predictor.ARIMA).forecast([3.0, 3.4, 2.9, 3.2, 3.1, 2.8, 3.3])
    assert forecast is not None
    assert main.os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert main.load_predictor(Predictor.CONSTANT).forecast([1.0, 5.0]) is not None
