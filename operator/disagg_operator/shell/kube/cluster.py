"""A slim view of all nodes and all pods, for placement.

Only what planning needs is kept, as small values: thousands of pods cost a few megabytes. Each kind has a list followed
by a watch with bookmarks; a watch that breaks, or whose version is too old, starts with a new list. When room appears
(a pod is gone, a node changed) ``freed`` is called, so that a waiting gang is tried again at once.

An operator of one namespace may lack the right to look at nodes, and pods on them. Then the view is ``blind`` and says
so at once, rather than let anybody wait for it; the right may come later, so it is asked for now and then.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from disagg_operator.core.placement import Ledger, NodeView, PodUse, Snapshot
from disagg_operator.errors import ApiError, Forbidden
from disagg_operator.render import reading
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.resources import NODES, PODS, Resource

log = logging.getLogger(__name__)

WATCH_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
GONE = 410


class ClusterView:
    """Nodes by name and uses by pod UID. ``last_event_age`` tells whether the watches live."""

    def __init__(
        self,
        api: Api,
        *,
        ledger: Ledger,
        freed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._freed = freed
        self._clock = clock
        self.nodes: dict[str, NodeView] = {}
        self.uses: dict[str, PodUse] = {}
        self._well: set[str] = set()
        self._answered = {NODES.plural: asyncio.Event(), PODS.plural: asyncio.Event()}
        self._refused: set[str] = set()
        self._heard = {NODES.plural: clock(), PODS.plural: clock()}

    async def run(self) -> None:
        """Follow both kinds until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(NODES, self._node, self._all_nodes), name="watch nodes")
            group.create_task(self._follow(PODS, self._pod, self._all_pods), name="watch pods")

    async def synced(self) -> None:
        """Wait for the first lists, before which the view shows more room than there is, or until they are refused."""
        for event in self._answered.values():
            await event.wait()

    @property
    def blind(self) -> str | None:
        """Why nothing can be placed, as a sentence that says what to do; None: the view is complete."""
        if not self._refused:
            return None
        return (
            f"the operator may not list {' and '.join(sorted(self._refused))} of the whole cluster, so it cannot tell "
            "where GPUs are free; give it the right (chart: rbac.readNodes=true, or scope=cluster)"
        )

    def is_lost(self, node: str) -> bool:
        """Whether a node is known to be gone, or not to be heard of."""
        return self._answered[NODES.plural].is_set() and NODES.plural not in self._refused and node not in self._well

    @property
    def last_event_age(self) -> float:
        """Seconds since the quieter of the two watches was heard; bookmarks come every minute."""
        return self._clock() - min(self._heard.values())

    def snapshot(self, *, now: float) -> Snapshot:
        """Nodes and free amounts now, promises of this process included."""
        return Snapshot.take(self.nodes.values(), [*self.uses.values(), *self._ledger.outstanding(now=now)])

    async def _follow(
        self,
        resource: Resource,
        changed: Callable[[str, Object], None],
        replaced: Callable[[list[Object]], None],
    ) -> None:
        pause = FIRST_PAUSE_SECONDS
        version = ""
        while True:
            try:
                if not version:
                    items, version = await self._api.objects_with_version(resource)
                    self._refused.discard(resource.plural)
                    replaced(items)
                    self._answered[resource.plural].set()
                self._heard[resource.plural] = self._clock()
                async for event in self._api.watch(resource, version=version, seconds=WATCH_SECONDS):
                    self._heard[resource.plural] = self._clock()
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        changed(event["type"], event["object"])
                    pause = FIRST_PAUSE_SECONDS
            except Forbidden as error:
                version = ""
                self._heard[resource.plural] = self._clock()
                if resource.plural not in self._refused:
                    log.warning("nothing can be placed: %s; again every %.0f s", error, LONGEST_PAUSE_SECONDS)
                    self._refused.add(resource.plural)
                self._answered[resource.plural].set()
                await asyncio.sleep(LONGEST_PAUSE_SECONDS)
            except ApiError as error:
                if error.code == GONE:
                    version = ""
                    continue
                log.warning("watch of %s: %s; again in %.1f s", resource.plural, error, pause)
                version = "" if error.code else version
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _all_nodes(self, items: list[Object]) -> None:
        self.nodes = {item["metadata"]["name"]: reading.node_view(item) for item in items}
        self._well = {item["metadata"]["name"] for item in items if reading.node_is_ready(item)}
        self._freed()

    def _all_pods(self, items: list[Object]) -> None:
        uses = (reading.use(item) for item in items)
        self.uses = {use.uid: use for use in uses if use is not None}
        self._ledger.withdraw(self.uses)
        self._freed()

    def _node(self, kind: str, item: Object) -> None:
        name = item["metadata"]["name"]
        before = self.nodes.get(name)
        self._well.discard(name)
        if kind == "DELETED":
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = reading.node_view(item)
            self._well |= {name} if reading.node_is_ready(item) else set()
        if self.nodes.get(name) != before:
            self._freed()

    def _pod(self, kind: str, item: Object) -> None:
        uid = item["metadata"]["uid"]
        use = None if kind == "DELETED" else reading.use(item)
        if use is not None or kind == "DELETED":
            # A promise ends when the watch shows what came of it, even if nobody plans before the pod is gone again.
            self._ledger.withdraw([uid])
        if use is not None:
            self.uses[uid] = use
        elif self.uses.pop(uid, None) is not None:
            self._freed()
