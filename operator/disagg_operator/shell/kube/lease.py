"""One operator acts at a time: a ``coordination.k8s.io`` Lease.

A lease that another holds counts as expired once it has not changed for its duration *on our own clock*, so clocks of
two machines need not agree. A holder that cannot renew in time stops acting before anybody else may start: it raises
``LeaseLost`` after two thirds of the duration.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from disagg_contract.labels import MANAGER
from disagg_operator.errors import ApiError, Conflict, LeaseLost
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.resources import LEASES

log = logging.getLogger(__name__)


class Lease:
    """The leader lease of ``identity``. ``seconds`` is its duration; it is renewed three times as often."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        identity: str,
        seconds: float,
        name: str = MANAGER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._seconds = seconds
        self._name = name
        self._clock = clock
        self._renewed = 0.0
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Wait until the lease is ours."""
        said = ""
        while True:
            try:
                holder = await self._try()
            except Conflict:
                continue
            except ApiError as error:
                holder = f"nobody knows who ({error})"
            if holder == self._identity:
                log.info("holds lease %s/%s as %s", self._namespace, self._name, self._identity)
                return
            if holder != said:
                log.info("lease %s/%s is held by %s; standing by", self._namespace, self._name, holder)
                said = holder
            await asyncio.sleep(self._seconds / 6)

    async def keep(self) -> None:
        """Renew for ever. Raises LeaseLost."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                async with asyncio.timeout(self._seconds / 3):
                    holder = await self._try()
                if holder != self._identity:
                    raise LeaseLost(f"lease {self._namespace}/{self._name} is held by {holder} now")
            except (ApiError, TimeoutError) as error:
                age = self._clock() - self._renewed
                log.warning("lease not renewed for %.1f s: %s", age, error)
                if age >= self._seconds * 2 / 3:
                    raise LeaseLost(f"lease {self._namespace}/{self._name} not renewed for {age:.1f} s") from error

    async def release(self) -> None:
        """Let the next one start at once."""
        try:
            lease = await self._api.find(LEASES, self._name, namespace=self._namespace)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._api.replace(LEASES, lease, namespace=self._namespace)
        except ApiError as error:
            log.warning("lease not released: %s", error)

    async def _try(self) -> str:
        """Take or renew; returns who holds it."""
        lease = await self._api.find(LEASES, self._name, namespace=self._namespace)
        started = self._clock()
        if lease is None:
            await self._api.create(LEASES, self._body({}), namespace=self._namespace)
        else:
            holder = str(lease["spec"].get("holderIdentity") or "")
            if holder not in ("", self._identity) and not self._expired(lease):
                return holder
            await self._api.replace(LEASES, self._body(lease), namespace=self._namespace)
        self._renewed = started
        return self._identity

    def _expired(self, lease: Object) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        duration = float(lease["spec"].get("leaseDurationSeconds") or self._seconds)
        return self._clock() - self._seen[1] >= duration

    def _body(self, lease: Object) -> Object:
        before = lease.get("spec", {})
        mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "renewTime": _now(),
            "acquireTime": before.get("acquireTime") if mine else _now(),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not lease else 1),
        }
        metadata = lease.get("metadata") or {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
