"""Instances as child processes: what pods and the kubelet are on Kubernetes."""

import asyncio
import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from disagg_contract.control import InstanceStatus
from disagg_contract.discovery import DiscoveredWorker
from disagg_contract.labels import Role as ContractRole
from disagg_contract.tokens import Tokens
from disagg_crds import DisaggDeployment, Role, group_name
from disagg_operator.core.actions import Action, CancelDrain, Create, Delete, Drain
from disagg_operator.core.fleet import Instance
from disagg_operator.core.target import compatibility
from disagg_operator.render.commands import Places, worker_command
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.instances import instance_name
from disagg_operator.shell.drain import cancel_drain, drain_state, is_healthy, start_drain
from disagg_operator.shell.local.child import Child
from disagg_operator.shell.local.ports import LOOPBACK, Ports

NODE = "localhost"
"""Every instance is "bound" to this machine."""
QUICK_SECONDS = 0.1
STEADY_SECONDS = 1.0
SETTLE_SECONDS = 0.6
"""Between the mark and telling the worker: routers poll the discovery file, and what they chose before may arrive."""

_ALPHABET = string.ascii_lowercase + string.digits


@dataclass(slots=True, eq=False)
class Worker:
    """One instance. Addresses are drawn anew at each start."""

    name: str
    role: Role
    gpus: int
    revision: str
    pairing: str
    created_at: float
    child: Child
    grace_seconds: float
    port: int = 0
    kv_port: int = 0
    ready: bool = False
    draining_since: float | None = None
    told: bool = False
    drained: bool = False
    probe: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def uid(self) -> str:
        return f"{self.name}.{self.child.incarnation}"

    @property
    def state(self) -> str:
        if self.child.stopping:
            return "stopping"
        if self.draining_since is not None:
            return "draining"
        if not self.child.running:
            return "crashed" if self.child.crashes else "starting"
        return "ready" if self.ready else "starting"

    def observe(self) -> Instance:
        return Instance(
            name=self.name,
            uid=self.uid,
            role=self.role,
            gpus=self.gpus,
            created_at=self.created_at,
            revision=self.revision,
            pairing=self.pairing,
            node=NODE,
            ready=self.ready,
            draining_since=self.draining_since,
            drained=self.drained,
            terminating=self.child.stopping,
        )


class Workers:
    """All instances of a deployment. ``say(reason, message)`` tells people; ``changed`` wakes the reconcile."""

    def __init__(
        self,
        deployment: DisaggDeployment,
        *,
        ports: Ports,
        logs: Path,
        places: Places,
        around: Surroundings,
        session: aiohttp.ClientSession,
        tokens: Tokens,
        clock: Callable[[], float],
        say: Callable[[str, str, str], None],
        changed: Callable[[], None],
    ) -> None:
        self._deployment = deployment
        self._ports = ports
        self._logs = logs
        self._places = places
        self._around = around
        self._session = session
        self._tokens = tokens
        self._clock = clock
        self._say = say
        self._changed = changed
        self._workers: dict[str, Worker] = {}

    @property
    def all(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    def poll(self, now: float) -> None:
        """Start, restart and reap processes as due."""
        for worker in self.all:
            if not worker.child.poll(now):
                continue
            worker.ready = worker.told = False
            if not worker.child.running and not worker.child.stopping:
                self._say(
                    "Warning",
                    "InstanceCrashed",
                    f"{worker.name} ended with status {worker.child.exit_code} and is started again; "
                    f"its log is {worker.child.log}",
                )
                # What it held is lost already, so nothing is left to wait for.
                worker.drained = worker.draining_since is not None
            if worker.child.gone:
                self._forget(worker)

    def observe(self) -> tuple[Instance, ...]:
        return tuple(worker.observe() for worker in self.all)

    def apply(self, actions: Iterable[Action], revisions: dict[Role, str], now: float) -> None:
        """Do what the core decided."""
        for action in actions:
            if isinstance(action, Create):
                self._create(action.role, revisions[action.role], now)
                continue
            worker = self._workers.get(action.instance.name)
            if worker is None:
                continue
            if isinstance(action, Drain):
                worker.draining_since = now
                self._say("Normal", "InstanceDraining", f"{worker.name}: {action.reason}")
            elif isinstance(action, CancelDrain):
                worker.draining_since, worker.drained = None, False
                self._say("Normal", "DrainCancelled", f"{worker.name} is wanted again")
            elif isinstance(action, Delete):
                worker.child.stop(now, grace_seconds=worker.grace_seconds)
                self._say("Normal", "InstanceDeleted", f"{worker.name}: {action.reason}")

    def discovered(self) -> tuple[DiscoveredWorker, ...]:
        """Rows of the discovery file: every instance that runs."""
        return tuple(
            DiscoveredWorker(
                uid=worker.uid,
                name=worker.name,
                role=ContractRole(worker.role.value),
                host=LOOPBACK,
                port=worker.port,
                ready=worker.ready and not worker.child.stopping,
                draining=worker.draining_since is not None or worker.child.stopping,
                domain=NODE,
            )
            for worker in self.all
            if worker.child.running
        )

    def statuses(self) -> tuple[InstanceStatus, ...]:
        return tuple(
            InstanceStatus(
                name=worker.name,
                role=ContractRole(worker.role.value),
                state=worker.state,
                url=worker.url,
                pid=worker.child.pid,
                log=str(worker.child.log),
            )
            for worker in self.all
        )

    def close(self) -> None:
        """Stop probing."""
        for worker in self.all:
            if worker.probe is not None:
                worker.probe.cancel()

    def _create(self, role: Role, revision: str, now: float) -> None:
        suffix = "".join(secrets.choice(_ALPHABET) for _ in range(5))
        name = instance_name(group_name(self._deployment.name, role), suffix)
        section = self._deployment.spec.roles[role]

        def command() -> list[str]:
            worker.port, worker.kv_port = self._ports.draw(), self._ports.draw()
            return worker_command(
                self._deployment,
                role,
                port=worker.port,
                kv_port=worker.kv_port,
                places=self._places,
                around=self._around,
            )

        worker = Worker(
            name=name,
            role=role,
            gpus=section.gpus_per_instance,
            revision=revision,
            pairing=compatibility(self._deployment),
            created_at=now,
            child=Child(name=name, command=command, log=self._logs / f"{name}.log"),
            grace_seconds=float(section.template.termination_grace_period_seconds),
        )
        self._workers[name] = worker
        worker.probe = asyncio.get_running_loop().create_task(self._watch(worker), name=f"probe {name}")
        self._say("Normal", "InstanceCreated", name)

    def _forget(self, worker: Worker) -> None:
        self._workers.pop(worker.name, None)
        if worker.probe is not None:
            worker.probe.cancel()

    async def _watch(self, worker: Worker) -> None:
        """Ask one worker how it is, often while it starts or drains."""
        while True:
            before = (worker.ready, worker.drained)
            if worker.child.running:
                incarnation = worker.child.incarnation
                ready = await is_healthy(self._session, worker.url)
                if incarnation == worker.child.incarnation:
                    worker.ready = ready and worker.child.running
                await self._drain(worker)
            if before != (worker.ready, worker.drained):
                self._changed()
            steady = worker.ready and worker.draining_since is None
            await asyncio.sleep(STEADY_SECONDS if steady else QUICK_SECONDS)

    async def _drain(self, worker: Worker) -> None:
        if worker.draining_since is None:
            if worker.told and await cancel_drain(self._session, worker.url, tokens=self._tokens):
                worker.told = False
            return
        if not worker.told:
            if self._clock() - worker.draining_since >= SETTLE_SECONDS:
                worker.told = await start_drain(self._session, worker.url, tokens=self._tokens)
            return
        state = await drain_state(self._session, worker.url, tokens=self._tokens)
        worker.drained = state is not None and state.draining and state.empty
