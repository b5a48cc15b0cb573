"""One deployment as processes: observe, decide, apply, publish; ten times a second and whenever something changes.

The loop is the process runtime's reconcile. It starts what is missing, restarts what crashed, drains what is no longer
wanted, writes the discovery file that the router watches, and keeps the conditions that ``disagg status`` shows.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp import web

from disagg_contract.control import Condition, RuntimeStatus
from disagg_contract.discovery import DiscoveryFile
from disagg_contract.tokens import Tokens
from disagg_crds import ConditionType, DisaggDeployment, EngineType, Role
from disagg_engine.catalogue import Catalogue
from disagg_operator.core.conditions import Answer, Facts, answers
from disagg_operator.core.decide import decide
from disagg_operator.core.fit import Fit, check_fit
from disagg_operator.core.fleet import Observed, RouterView, Target, count
from disagg_operator.core.gangs import gangs
from disagg_operator.core.target import build_target
from disagg_operator.errors import RuntimeStartError
from disagg_operator.render.commands import Places, planner_command, router_command
from disagg_operator.render.configs import Surroundings, needs_planner
from disagg_operator.shell.catalogues import read_catalogue
from disagg_operator.shell.drain import is_healthy
from disagg_operator.shell.local.board import Board
from disagg_operator.shell.local.child import Child
from disagg_operator.shell.local.control import control_app
from disagg_operator.shell.local.ports import LOOPBACK, Ports, claim
from disagg_operator.shell.local.program import default_program
from disagg_operator.shell.local.state import (
    DISCOVERY_FILE,
    LOGS,
    RunningState,
    default_state_dir,
    held,
    replace_file,
    write_state,
    write_tokens,
)
from disagg_operator.shell.local.workers import Workers

TICK_SECONDS: Final = 0.1
STOP_SECONDS: Final = 10.0
"""Grace of a stop: requests in flight get this long before they are cut off."""
ROUTER_SHARE: Final = 0.8
"""Of that time, after which the router itself ends what is left: its clients then get an error and not just an end."""
HOPELESS_CRASHES: Final = 3
TOKEN_BYTES: Final = 32
USAGE_ERROR: Final = 2


class Runtime:
    """``async with Runtime(deployment) as runtime`` runs it; leaving the block stops every process.

    ``router_port`` 0 takes a free one. ``program`` is the command line that starts ``disagg``. Raises
    RuntimeStartError when the port or the state folder is taken, or the model does not fit.
    """

    def __init__(
        self,
        deployment: DisaggDeployment,
        *,
        state_dir: Path | None = None,
        router_port: int = 0,
        catalogue: str = "",
        log_level: str = "info",
        program: Sequence[str] = (),
        stop_seconds: float = STOP_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if deployment.spec.engine.type is not EngineType.SIMULATED:
            raise RuntimeStartError(
                f"spec.engine.type is {deployment.spec.engine.type.value}: without a cluster there are simulated "
                f"engines only; leave it out, or apply the file to a cluster with GPUs"
            )
        self.deployment = deployment
        self.state_dir = (state_dir or default_state_dir(deployment.name)).absolute()
        self.control_url = ""
        self.planner_url = ""
        self.stop_seconds: Final = stop_seconds
        self._clock = clock
        self._program = tuple(program) or default_program()
        self._around = Surroundings(catalogue=catalogue, log_level=log_level)
        self._catalogue: Catalogue = read_catalogue(catalogue)
        self._fit: Fit = check_fit(deployment.spec, self._catalogue)
        self._ports = Ports()
        self._router_port = router_port
        self._board = Board(deployment, clock=clock)
        self._hurry = False
        self._wake = asyncio.Event()
        self._stack = AsyncExitStack()
        self._published = b""
        self._router_ready = False
        self._answers: dict[ConditionType, Answer] = {}
        self._target_key: dict[Role, int] | None = None
        self._target_value: Target | None = None

    @property
    def router_url(self) -> str:
        """Where clients send requests."""
        return f"http://{LOOPBACK}:{self._router_port}"

    @property
    def logs(self) -> Path:
        """Folder with one log a program."""
        return self.state_dir / LOGS

    @property
    def discovery_file(self) -> Path:
        return self.state_dir / DISCOVERY_FILE

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        if not self._fit.fits:
            raise RuntimeStartError(self._fit.message)
        self._stack.enter_context(held(self.state_dir))
        if self._router_port:
            claim(self._router_port)
        else:
            self._router_port = self._ports.draw()
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession())
        await self._serve_control()
        # Drawn anew at each start: its members start and end with this runtime.
        tokens = Tokens((secrets.token_urlsafe(TOKEN_BYTES),))
        places = Places(
            program=self._program,
            discovery_file=str(self.discovery_file),
            control_url=self.control_url,
            router_url=self.router_url,
            token_file=str(write_tokens(self.state_dir, tokens)),
        )
        self._workers = Workers(
            self.deployment,
            ports=self._ports,
            logs=self.logs,
            places=places,
            around=self._around,
            session=self._session,
            tokens=tokens,
            clock=self._clock,
            say=self._board.record,
            changed=self._wake.set,
        )
        self._router = Child(
            name="router",
            command=lambda: router_command(
                self.deployment,
                port=self._router_port,
                grace_seconds=self.stop_seconds * ROUTER_SHARE,
                places=places,
                around=self._around,
            ),
            log=self.logs / "router.log",
        )
        self._planner = self._planner_child(places)
        self._publish()
        write_state(
            RunningState(
                deployment=self.deployment.name,
                pid=os.getpid(),
                control_url=self.control_url,
                router_url=self.router_url,
                state_dir=str(self.state_dir),
            )
        )
        self._stack.push_async_callback(self._stop_children)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._reconcile_forever(), name="reconcile"),
            loop.create_task(self._probe_router(), name="probe router"),
        ]
        self._stack.push_async_callback(self._stop_tasks)

    def _planner_child(self, places: Places) -> Child | None:
        if not needs_planner(self.deployment):
            return None
        port = self._ports.draw()
        self.planner_url = f"http://{LOOPBACK}:{port}"
        return Child(
            name="planner",
            command=lambda: planner_command(self.deployment, port=port, places=places, around=self._around),
            log=self.logs / "planner.log",
        )

    async def _serve_control(self) -> None:
        app = control_app(self._board, status=self.status, changed=self._wake.set)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.control_url = f"http://{host}:{port}"

    # The loop

    async def _reconcile_forever(self) -> None:
        while True:
            self._wake.clear()
            self._reconcile(self._clock())
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _reconcile(self, now: float) -> None:
        for child in self._programs():
            if child.poll(now) and not child.running and not child.stopping:
                self._board.record(
                    "Warning",
                    "ProgramCrashed",
                    f"{child.name} ended with status {child.exit_code} and is started again; its log is {child.log}",
                )
        self._workers.poll(now)
        self._board.revert()
        target = self._target()
        decision = decide(target, Observed(now, self._workers.observe()))
        revisions = {role: section.revision for role, section in target.roles.items()}
        self._workers.apply(decision.actions, revisions, now)
        self._workers.poll(now)
        self._publish()
        self._judge(target, Observed(now, self._workers.observe()), decision.unaffordable)

    def _target(self) -> Target:
        replicas = self._board.replicas()
        if self._target_value is None or replicas != self._target_key:
            self._target_key = replicas
            self._target_value = build_target(self.deployment, replicas, image="")
        return self._target_value

    def _programs(self) -> list[Child]:
        return [child for child in (self._router, self._planner) if child is not None]

    def _publish(self) -> None:
        document = DiscoveryFile(deployment=self.deployment.name, workers=self._workers.discovered()).to_json()
        if document != self._published:
            replace_file(self.discovery_file, document)
            self._published = document

    def _judge(self, target: Target, observed: Observed, unaffordable: int) -> None:
        counts = {role: count(section, observed.instances) for role, section in target.roles.items()}
        self._board.observe(counts)
        router = RouterView(desired=1, current=int(self._router.running), ready=int(self._router_ready), updated=1)
        facts = Facts(
            roles=target.roles,
            counts=counts,
            router=router,
            gang=gangs(target, observed),
            fit=self._fit,
            unaffordable=unaffordable,
        )
        for answer in answers(facts):
            before = self._answers.get(answer.type)
            if before == answer:
                continue
            self._answers[answer.type] = answer
            self._board.put_condition(Condition(answer.type.value, answer.status, answer.reason.value, answer.message))
            told = answer.type is ConditionType.READY
            if told and (before is None or (before.status, before.reason) != (answer.status, answer.reason)):
                self._board.record("Normal", answer.reason.value, answer.message)

    async def _probe_router(self) -> None:
        while True:
            self._router_ready = self._router.running and await is_healthy(self._session, self.router_url)
            await asyncio.sleep(1.0 if self._router_ready else TICK_SECONDS)

    # What others see

    def status(self) -> RuntimeStatus:
        """Everything that ``disagg status`` prints."""
        return RuntimeStatus(
            deployment=self.deployment.name,
            model=self.deployment.spec.model,
            router_url=self.router_url,
            planner_url=self.planner_url,
            control_url=self.control_url,
            state_dir=str(self.state_dir),
            groups=self._board.scales(),
            instances=self._workers.statuses(),
            conditions=self._board.conditions(),
            events=self._board.events(),
        )

    @property
    def ready(self) -> bool:
        """Every wanted instance and the router serve."""
        answer = self._answers.get(ConditionType.READY)
        return answer is not None and answer.status == "True"

    async def wait_ready(self, *, timeout_seconds: float = 120.0) -> None:
        """Wait until everything serves.

        Raises RuntimeStartError when a program cannot run at all, or after ``timeout_seconds``, with what is missing.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while not self.ready:
            for task in self._tasks:
                if task.done():
                    task.result()
            self._give_up_on_hopeless()
            if asyncio.get_running_loop().time() >= deadline:
                answer = self._answers.get(ConditionType.READY)
                why = answer.message if answer is not None else "nothing was started"
                raise RuntimeStartError(f"not ready after {timeout_seconds:g} s: {why}; the logs are in {self.logs}")
            await asyncio.sleep(TICK_SECONDS / 2)

    def _give_up_on_hopeless(self) -> None:
        for child in [*self._programs(), *(worker.child for worker in self._workers.all)]:
            usage = child.exit_code == USAGE_ERROR and child.crashes > 0
            if usage or child.crashes >= HOPELESS_CRASHES:
                raise RuntimeStartError(
                    f"{child.name} ends with status {child.exit_code} as soon as it starts:\n"
                    f"{child.last_words()}\n(its log is {child.log})"
                )

    def hurry(self) -> None:
        """Stop without waiting for requests in flight, also when stopping already."""
        self._hurry = True

    async def failure(self) -> None:
        """Wait for the runtime's own loop to fail; raises its error. Cancel it when it is no longer of interest."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    # The end

    async def _stop_tasks(self) -> None:
        self._workers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stop_children(self) -> None:
        """Planner and router first: what is in flight ends while its workers still serve."""
        workers = [worker.child for worker in self._workers.all]
        deadline = self._clock() + self.stop_seconds
        for group in (self._programs(), workers):
            while not all(child.gone for child in group):
                for child in group:
                    left = 0.0 if self._hurry else max(0.5, deadline - self._clock())
                    child.stop(self._clock(), grace_seconds=left)
                    child.poll(self._clock())
                await asyncio.sleep(TICK_SECONDS / 4)
