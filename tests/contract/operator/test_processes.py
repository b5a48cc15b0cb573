"""The process runtime with stand-ins for the programs: real processes, real HTTP, real signals."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE
from typing import Any

import aiohttp
import pytest

from disagg_contract.control import (
    EVENTS_PATH,
    STATUS_PATH,
    Condition,
    RuntimeStatus,
    Scale,
    condition_path,
    scale_path,
)
from disagg_contract.discovery import DiscoveryFile
from disagg_contract.labels import Role
from disagg_contract.listening import ListenError
from disagg_contract.tokens import Tokens
from disagg_crds import DisaggDeployment
from disagg_operator.errors import RuntimeStartError
from disagg_operator.shell.local.state import TOKEN_FILE
from disagg_operator.shell.processes import Runtime, read_file, read_state

Make = Callable[..., DisaggDeployment]
Program = tuple[str, ...]


async def until(holds: Callable[[], Any], *, seconds: float = 30.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def started(deployment: DisaggDeployment, program: Program, folder: Path) -> AsyncIterator[Runtime]:
    async with Runtime(deployment, state_dir=folder / "state", program=program, stop_seconds=5) as runtime:
        await runtime.wait_ready(timeout_seconds=60)
        yield runtime


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def of_process(pid: int, page: str) -> bytes:
    return Path(f"/proc/{pid}/{page}").read_bytes()


def has_text(log: str) -> bool:
    return bool(Path(log).read_text())


async def scale(session: aiohttp.ClientSession, runtime: Runtime, role: Role, replicas: int) -> Scale:
    url = runtime.control_url + scale_path(role)
    async with session.get(url) as answer:
        found = Scale.from_json(await answer.text())
    wanted = Scale(role, replicas, found.resource_version)
    async with session.put(url, data=wanted.to_json()) as answer:
        assert answer.status == 200
        return Scale.from_json(await answer.text())


async def test_the_token_is_in_a_file_of_the_users_own_and_in_no_command_line(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    seen: set[str] = set()
    for _ in range(2):
        async with started(make_deployment(), program, tmp_path) as runtime:
            path = runtime.state_dir / TOKEN_FILE
            assert S_IMODE(path.stat().st_mode) == 0o600
            (token,) = Tokens.parse(path.read_bytes(), name=str(path)).values
            assert token not in seen, "another one at each start"
            seen.add(token)
            children = [item.pid for item in runtime.status().instances]
            assert children
            for pid in (*children, os.getpid()):
                for page in ("cmdline", "environ"):
                    assert token.encode() not in of_process(pid, page)
            for pid in children:
                assert f"--token-file={path}".encode() in of_process(pid, "cmdline")
            assert token.encode() not in runtime.status().to_json()
            assert not any(token.encode() in log.read_bytes() for log in runtime.logs.iterdir())
        assert not path.exists()


async def test_everything_comes_up_and_goes_away(make_deployment: Make, program: Program, tmp_path: Path) -> None:
    async with started(make_deployment(), program, tmp_path) as runtime, aiohttp.ClientSession() as session:
        async with session.get(runtime.control_url + STATUS_PATH) as answer:
            status = RuntimeStatus.from_json(await answer.text())
        assert {group.role: (group.replicas, group.ready) for group in status.groups} == {
            Role.PREFILL: (1, 1),
            Role.DECODE: (1, 1),
        }
        assert {condition.type: condition.status for condition in status.conditions}["Ready"] == "True"
        assert [instance.state for instance in status.instances] == ["ready", "ready"]
        assert all(has_text(instance.log) for instance in status.instances)
        workers = DiscoveryFile.from_json(runtime.discovery_file.read_bytes()).workers
        assert {worker.name for worker in workers} == {instance.name for instance in status.instances}
        state = read_state(runtime.state_dir)
        assert state is not None
        assert (state.control_url, state.pid) == (runtime.control_url, os.getpid())
        pids = [instance.pid for instance in status.instances]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    assert read_state(runtime.state_dir) is None


async def test_a_stale_scale_is_refused_and_a_fresh_one_is_followed(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    async with started(make_deployment(), program, tmp_path) as runtime, aiohttp.ClientSession() as session:
        before = await scale(session, runtime, Role.DECODE, 2)
        await until(lambda: runtime.status().groups[1].ready == 2)
        await scale(session, runtime, Role.DECODE, 3)
        url = runtime.control_url + scale_path(Role.DECODE)
        stale = Scale(Role.DECODE, 1, before.resource_version)
        async with session.put(url, data=stale.to_json()) as answer:
            assert answer.status == 409
            message = (await answer.json())["message"]
            assert f"not {before.resource_version!r}: read the scale again" in message
        async with session.put(url, data=replace(stale, resource_version="").to_json()) as answer:
            assert answer.status == 409
            assert "and none was sent: read the scale again" in (await answer.json())["message"]
        assert runtime.status().groups[1].replicas == 3
        async with session.get(runtime.control_url + "/v1/groups/worker/scale") as answer:
            assert answer.status == 404
        async with session.put(url, data=b'{"role": "decode"}') as answer:
            assert answer.status == 400
            assert "replicas" in (await answer.json())["message"]


async def test_kv9_scale_down_drains_before_it_stops(make_deployment: Make, program: Program, tmp_path: Path) -> None:
    busy = Path(program[-1]).parent / "busy"
    two = make_deployment(decode={"autoscaling": {"min": 1, "max": 4, "initial": 2}})
    async with started(two, program, tmp_path) as runtime, aiohttp.ClientSession() as session:
        busy.touch()
        await scale(session, runtime, Role.DECODE, 1)

        def victims() -> list[str]:
            return [instance.name for instance in runtime.status().instances if instance.state == "draining"]

        await until(victims)
        (victim,) = victims()
        workers = DiscoveryFile.from_json(runtime.discovery_file.read_bytes()).workers
        assert [worker.draining for worker in workers if worker.name == victim] == [True]
        await asyncio.sleep(1.0)
        assert victims() == [victim], "it still has a request"
        busy.unlink()
        await until(lambda: victim not in {instance.name for instance in runtime.status().instances})
        assert runtime.status().groups[1].ready == 1
        reasons = [event.reason for _, event in runtime.status().events]
        assert reasons.index("InstanceDraining") < reasons.index("InstanceDeleted")


async def test_a_drain_is_cancelled_when_the_instance_is_wanted_again(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    two = make_deployment(decode={"autoscaling": {"min": 1, "max": 4, "initial": 2}})
    async with started(two, program, tmp_path) as runtime, aiohttp.ClientSession() as session:
        names = {instance.name for instance in runtime.status().instances}
        (Path(program[-1]).parent / "busy").touch()
        await scale(session, runtime, Role.DECODE, 1)
        await until(lambda: any(instance.state == "draining" for instance in runtime.status().instances))
        await asyncio.sleep(1.0)  # the worker was told meanwhile
        await scale(session, runtime, Role.DECODE, 2)
        await until(lambda: all(instance.state == "ready" for instance in runtime.status().instances))
        assert {instance.name for instance in runtime.status().instances} == names


async def test_a_fixed_number_is_put_back(make_deployment: Make, program: Program, tmp_path: Path) -> None:
    async with started(make_deployment(), program, tmp_path) as runtime, aiohttp.ClientSession() as session:
        await scale(session, runtime, Role.PREFILL, 3)
        await until(lambda: any(event.reason == "ScaleReverted" for _, event in runtime.status().events))
        assert runtime.status().groups[0].replicas == 1


async def test_a_crashed_child_is_started_again_as_somebody_new(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    async with started(make_deployment(), program, tmp_path) as runtime:
        before = DiscoveryFile.from_json(runtime.discovery_file.read_bytes()).workers
        victim = runtime.status().instances[0]
        os.kill(victim.pid, signal.SIGKILL)
        await until(lambda: any(event.reason == "InstanceCrashed" for _, event in runtime.status().events))
        await until(lambda: all(instance.state == "ready" for instance in runtime.status().instances))
        after = DiscoveryFile.from_json(runtime.discovery_file.read_bytes()).workers
        assert {worker.name for worker in before} == {worker.name for worker in after}
        assert len({worker.uid for worker in before} & {worker.uid for worker in after}) == len(before) - 1


async def test_conditions_and_events_of_the_planner_are_shown(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    async with started(make_deployment(), program, tmp_path) as runtime, aiohttp.ClientSession() as session:
        condition = {"type": "MetricsAvailable", "status": "True", "reason": "MetricsFresh", "message": "fine"}
        async with session.put(runtime.control_url + condition_path("MetricsAvailable"), json=condition) as answer:
            assert answer.status == 204
        event = {"type": "Normal", "reason": "Scaled", "message": "decode 1 to 2"}
        async with session.post(runtime.control_url + EVENTS_PATH, json=event) as answer:
            assert answer.status == 204
        assert Condition(**condition) in runtime.status().conditions
        assert runtime.status().events[-1][1].reason == "Scaled"


async def test_the_budget_bounds_what_is_started(make_deployment: Make, program: Program, tmp_path: Path) -> None:
    async with started(make_deployment(gpuBudget=2), program, tmp_path) as runtime, aiohttp.ClientSession() as session:
        await scale(session, runtime, Role.DECODE, 4)
        await until(lambda: any(c.reason == "GpuBudgetExceeded" for c in runtime.status().conditions))
        assert len(runtime.status().instances) == 2


async def test_a_port_in_use_is_said_in_one_sentence(make_deployment: Make, program: Program, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        runtime = Runtime(make_deployment(), state_dir=tmp_path / "state", program=program, router_port=port)
        with pytest.raises(ListenError, match=f"port {port} on 127.0.0.1 is in use; choose another with --port"):
            await runtime.__aenter__()


async def test_two_runtimes_do_not_share_a_folder(make_deployment: Make, program: Program, tmp_path: Path) -> None:
    async with started(make_deployment(), program, tmp_path) as first:
        second = Runtime(make_deployment(), state_dir=first.state_dir, program=program)
        with pytest.raises(RuntimeStartError, match=f"pid {os.getpid()}"):
            await second.__aenter__()


async def test_a_program_that_cannot_run_ends_the_start_with_its_words(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    (Path(program[-1]).parent / "broken").touch()
    with pytest.raises(RuntimeStartError, match="known are a, b"):
        async with started(make_deployment(), program, tmp_path):
            raise AssertionError("it must not come up")


def test_a_model_that_is_unknown_is_refused_with_the_known_ones(make_deployment: Make, tmp_path: Path) -> None:
    async def start() -> None:
        async with Runtime(make_deployment(model="gpt-99"), state_dir=tmp_path):
            raise AssertionError("it must not come up")

    with pytest.raises(RuntimeStartError, match=r"unknown model 'gpt-99'; known are: .*opt-13b"):
        asyncio.run(start())


def test_files_that_cannot_be_run_are_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeStartError, match="no such file"):
        read_file(tmp_path / "absent.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("apiVersion: disagg.dev/v1alpha1\nkind: DisaggDeployment\nmetadata: {name: x}\nspec: {}\n")
    with pytest.raises(RuntimeStartError, match=r"spec\.model: is required"):
        read_file(bad)


UP = """
import sys
from pathlib import Path
from disagg_operator.shell.local import runtime
from disagg_operator.shell.processes import up
runtime.default_program = lambda: tuple(sys.argv[4:])
sys.exit(up(Path(sys.argv[1]), state_dir=Path(sys.argv[2]), stop_seconds=float(sys.argv[3]), router_port=0))
"""


@asynccontextmanager
async def up_process(
    make: Make, program: Program, folder: Path, *, stop_seconds: float = 5
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    file, state = folder / "local.yaml", folder / "state"
    file.write_text(json.dumps(make().to_dict()))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", UP, str(file), str(state), str(stop_seconds), *program, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while b"ready at" not in (line := await process.stdout.readline()):
                assert line, "it ended before it was ready"
        yield process, state
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def children(state: Path) -> list[int]:
    found = read_state(state)
    assert found is not None
    async with aiohttp.ClientSession() as session, session.get(found.control_url + STATUS_PATH) as answer:
        return [instance.pid for instance in RuntimeStatus.from_json(await answer.text()).instances]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_up_stops_everything_on_a_signal(
    make_deployment: Make, program: Program, tmp_path: Path, number: signal.Signals
) -> None:
    async with up_process(make_deployment, program, tmp_path) as (process, state):
        pids = await children(state)
        assert all(map(alive, pids))
        process.send_signal(number)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
        assert not any(map(alive, pids))
        assert read_state(state) is None


async def test_a_second_signal_does_not_wait_for_requests_in_flight(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    (Path(program[-1]).parent / "deaf").touch()
    async with up_process(make_deployment, program, tmp_path, stop_seconds=3600) as (process, state):
        pids = await children(state)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert b"Ctrl-C again" in await process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
        assert not any(map(alive, pids))


async def test_children_die_with_a_runtime_that_is_killed(
    make_deployment: Make, program: Program, tmp_path: Path
) -> None:
    async with up_process(make_deployment, program, tmp_path) as (process, state):
        pids = await children(state)
        process.kill()
        await process.wait()
        await until(lambda: not any(map(alive, pids)))
        assert read_state(state) is None


def test_real_engines_need_a_cluster(make_deployment: Make, program: Program, tmp_path: Path) -> None:
    fixed = {"replicas": 1, "gpu": {"type": "h100"}}
    deployment = make_deployment(engine={"type": "vllm", "image": "vllm:1"}, prefill=fixed, decode=fixed)
    with pytest.raises(RuntimeStartError, match=r"spec\.engine\.type is vllm: without a cluster"):
        Runtime(deployment, state_dir=tmp_path / "state", program=program)
