"""The control API of the process runtime: ``/scale`` and conditions without Kubernetes.

It listens on loopback and has the semantics the planner relies on from Kubernetes: a scale carries a resource
version, a write with a stale one is refused with 409, and the writer reads again and decides again. Each decision of
the planner leaves a condition and an event, which ``disagg status`` shows.

==========  =======================================  ===========================  =======================
method      path                                     body                         answer
==========  =======================================  ===========================  =======================
GET         ``/v1/status``                                                        :class:`RuntimeStatus`
GET         ``/v1/groups/{role}/scale``                                           :class:`Scale`
PUT         ``/v1/groups/{role}/scale``              :class:`Scale`               :class:`Scale`, or 409
PUT         ``/v1/conditions/{type}``                :class:`Condition`           204
POST        ``/v1/events``                           :class:`Event`               204
==========  =======================================  ===========================  =======================
"""

from dataclasses import dataclass, field
from typing import Final

from disagg_contract.documents import decode, encode
from disagg_contract.labels import Role

STATUS_PATH: Final = "/v1/status"
EVENTS_PATH: Final = "/v1/events"


def scale_path(role: Role) -> str:
    return f"/v1/groups/{role.value}/scale"


def condition_path(kind: str) -> str:
    return f"/v1/conditions/{kind}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Replicas of one group. ``replicas`` is wanted, ``current`` exist, ``ready`` serve."""

    role: Role
    replicas: int
    resource_version: str
    current: int = 0
    ready: int = 0

    def to_json(self) -> bytes:
        return encode(self)

    @staticmethod
    def from_json(raw: bytes | str) -> "Scale":
        return decode(raw, Scale, what="scale")


@dataclass(frozen=True, slots=True)
class Condition:
    """As in Kubernetes: status is ``True``, ``False`` or ``Unknown``; reason is CamelCase for machines."""

    type: str
    status: str
    reason: str
    message: str = ""

    @staticmethod
    def from_json(raw: bytes | str) -> "Condition":
        return decode(raw, Condition, what="condition")


@dataclass(frozen=True, slots=True)
class Event:
    """A decision explained to a person. ``type`` is ``Normal`` or ``Warning``."""

    type: str
    reason: str
    message: str

    @staticmethod
    def from_json(raw: bytes | str) -> "Event":
        return decode(raw, Event, what="event")


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One child process that serves."""

    name: str
    role: Role
    state: str
    url: str
    pid: int
    log: str


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """Everything ``disagg status`` prints. Times of events are seconds since the epoch."""

    deployment: str
    model: str
    router_url: str
    planner_url: str
    control_url: str
    state_dir: str
    groups: tuple[Scale, ...] = ()
    instances: tuple[InstanceStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()
    events: tuple[tuple[float, Event], ...] = field(default_factory=tuple)

    def to_json(self) -> bytes:
        return encode(self)

    @staticmethod
    def from_json(raw: bytes | str) -> "RuntimeStatus":
        return decode(raw, RuntimeStatus, what="status of the runtime")
