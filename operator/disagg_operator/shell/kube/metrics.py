"""The operator's metrics, in a registry of its own; every series exists at 0 from the start."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from disagg_contract import metrics as names
from disagg_contract.metrics import Metric
from disagg_crds import Role
from disagg_operator.core.fleet import Counts

KINDS = ("dd", "dg")


class Metrics:
    """Counters and gauges of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.status_writes = 0
        self._reconciles = self._counter(names.OPERATOR_RECONCILES)
        self._seconds = Histogram(
            names.OPERATOR_RECONCILE.name,
            names.OPERATOR_RECONCILE.help,
            names.OPERATOR_RECONCILE.labels,
            buckets=names.OPERATOR_RECONCILE.buckets,
            registry=self.registry,
        )
        self._queue = self._gauge(names.OPERATOR_QUEUE)
        self._placements = self._counter(names.OPERATOR_PLACEMENTS)
        self._last_event = self._gauge(names.OPERATOR_LAST_EVENT)
        self._replicas = self._gauge(names.OPERATOR_REPLICAS)
        for kind in KINDS:
            self._seconds.labels(kind)
            for result in names.OPERATOR_RESULTS:
                self._reconciles.labels(kind, result)
        for result in names.OPERATOR_PLACEMENT_RESULTS:
            self._placements.labels(result)

    def watch(self, *, queue_length: Callable[[], float], last_event_age: Callable[[], float]) -> None:
        """Gauges that are read when they are scraped."""
        self._queue.set_function(queue_length)
        self._last_event.set_function(last_event_age)

    def reconciled(self, kind: str, result: str, seconds: float) -> None:
        self._reconciles.labels(kind, result).inc()
        self._seconds.labels(kind).observe(seconds)

    def placement(self, result: str) -> None:
        self._placements.labels(result).inc()

    def status_written(self) -> None:
        """Counted for tests of the steady state."""
        self.status_writes += 1

    def replicas(self, namespace: str, deployment: str, counts: Mapping[Role, Counts]) -> None:
        for role, count in counts.items():
            for state, value in (("desired", count.desired), ("current", count.current), ("ready", count.ready)):
                self._replicas.labels(namespace, deployment, role.value, state).set(value)

    def forget(self, namespace: str, deployment: str) -> None:
        """The deployment is gone, and so are its series."""
        for role in Role:
            for state in names.OPERATOR_REPLICA_STATES:
                self._replicas.remove_by_labels(
                    {"namespace": namespace, "deployment": deployment, names.ROLE: role.value, "state": state}
                )

    def exposition(self) -> bytes:
        """Text format of all series."""
        return generate_latest(self.registry)

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
