"""An operator that is killed after every single write, and started anew: nothing is booked twice, nothing forgotten.

Each life of the operator here ends with its first write of a group, an instance or a status, once the API server has
it: between planning and announcing, between announcing and the first patch, between two patches, and after the last. A
few dozen lives then do what one would, and after each of them the cluster is looked at.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from disagg_contract.labels import DEPLOYMENT, HOSTNAME, NVLINK_DOMAIN
from disagg_operator.core.placement import Ledger
from disagg_operator.core.tokens import TokenRules
from disagg_operator.errors import Conflict
from disagg_operator.render.configs import Surroundings
from disagg_operator.shell.catalogues import read_catalogue
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.cluster import ClusterView
from disagg_operator.shell.kube.connect import connect
from disagg_operator.shell.kube.deployments import DeploymentReconciler
from disagg_operator.shell.kube.drains import Drains
from disagg_operator.shell.kube.events import Recorder
from disagg_operator.shell.kube.metrics import Metrics
from disagg_operator.shell.kube.placing import Placer
from disagg_operator.shell.kube.resources import DEPLOYMENTS, GROUPS, PODS, Resource
from disagg_operator.shell.kube.tokens import TokenSecrets
from tests.integration.operator.conftest import World

TWO = {"replicas": 2, "minAvailable": 2}


class Killed(BaseException):
    """The process is gone: no handler of errors sees it."""


class Mortal(Api):
    """Dies with its first write that matters; the write is done, its answer is lost."""

    dead = False
    queue: asyncio.Lock

    async def _call(self, resource: Resource, verb: str, method: str, **given: Any) -> Object:
        if method == "GET" or resource not in (DEPLOYMENTS, GROUPS, PODS):
            return await super()._call(resource, verb, method, **given)
        async with self.queue:
            if self.dead:
                raise Killed
            await super()._call(resource, verb, method, **given)
            self.dead = True
            raise Killed


def live(namespace: str, name: str) -> bool:
    """One life of an operator; whether it ended by itself, with nothing to write."""

    async def main() -> bool:
        async with Mortal(await connect()) as api, aiohttp.ClientSession() as session:
            api.queue = asyncio.Lock()
            ledger = Ledger()
            view = ClusterView(api, ledger=ledger, freed=lambda: None)
            watching = asyncio.create_task(view.run())
            reconcile = DeploymentReconciler(
                api,
                placer=Placer(api, view, ledger),
                recorder=Recorder(api, identity="mortal"),
                drains=Drains(session),
                tokens=TokenSecrets(api, rules=TokenRules(step_seconds=1.0), version=""),
                around=Surroundings(image="disagg:test"),
                catalogue=read_catalogue(""),
                metrics=Metrics(),
            )
            try:
                await reconcile(namespace, name)
            except Killed:
                return False
            except Conflict:
                return False
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            return True

    return asyncio.run(main())


def check(world: World, sizes: dict[str, int]) -> Counter[str]:
    """What holds whenever somebody looks. Returns the bound instances of each deployment."""
    taken: Counter[str] = Counter()
    bound: Counter[str] = Counter()
    found = world.kube.items("pods", "disagg.dev/role")
    for name in ("one", "two"):
        pods = [pod for pod in found if pod["metadata"]["labels"][DEPLOYMENT] == name]
        bound[name] = sum(1 for pod in pods if pod["spec"].get("nodeName"))
        assert len(pods) <= 4, f"{name} has more instances than it wants"
        pinned = [pod for pod in pods if HOSTNAME in pod["spec"]["nodeSelector"]]
        assert len({pod["metadata"]["labels"][NVLINK_DOMAIN] for pod in pinned}) <= 1, f"{name} is in one domain"
        taken.update(pod["spec"]["nodeSelector"][HOSTNAME] for pod in pinned)
    assert all(number <= sizes[node] for node, number in taken.items()), f"a GPU is booked twice: {taken}"
    return bound


def test_killed_after_every_write_it_books_nothing_twice_and_forgets_nothing(
    world: World, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    sizes = {
        world.nodes.add(name, domain, gpus=2): 2 for name, domain in (("a", "l"), ("b", "l"), ("c", "r"), ("d", "r"))
    }
    for name in ("one", "two"):
        world.kube.apply(world.deployment(name, prefill=TWO, decode=TWO))
    waiting = ["one", "two"]
    for _ in range(100):
        if not waiting:
            break
        name = waiting.pop(0)
        done = live(world.kube.namespace, name)
        if check(world, sizes)[name] < 4 or not done:
            waiting.append(name)
    assert not waiting, "all of it is placed in the end"
    domains = {pod["metadata"]["labels"][NVLINK_DOMAIN] for name in ("one", "two") for pod in world.bound(name)}
    assert len(domains) == 2
    for name in ("one", "two"):
        assert not world.status(name)["placement"].get("assignments"), "nothing is left to finish"
        assert world.reason("GangScheduled", name) == "GangBound"
