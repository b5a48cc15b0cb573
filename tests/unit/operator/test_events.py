"""What is said, and how often."""

from typing import Any

from disagg_operator.core.status import Note
from disagg_operator.errors import ApiError
from disagg_operator.shell.kube.events import REPEAT_SECONDS, TURN_SECONDS, Recorder

READY = Note("Normal", "AllInstancesReady", "everything serves")
SHORT = Note("Normal", "InstancesNotReady", "decode: 0 of 1 ready")


def about(uid: str = "u1") -> dict[str, Any]:
    metadata = {"name": "chat", "namespace": "default", "uid": uid}
    return {"apiVersion": "disagg.dev/v1alpha1", "kind": "DisaggDeployment", "metadata": metadata}


class Posted:
    """An API that keeps what is created, or refuses it."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.reasons: list[str] = []
        self._refuses = refuses

    async def create(self, resource: object, body: dict[str, Any], *, namespace: str) -> None:
        if self._refuses:
            raise ApiError("no")
        self.reasons.append(body["reason"])


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_the_same_sentence_is_said_once_in_a_while() -> None:
    api, clock = Posted(), Clock()
    recorder = Recorder(api, identity="me", clock=clock)  # type: ignore[arg-type]
    for _ in range(5):
        await recorder.post(about(), READY)
    await recorder.post(about("u2"), READY)
    assert api.reasons == [READY.reason] * 2
    clock.now += REPEAT_SECONDS
    await recorder.post(about(), READY)
    assert len(api.reasons) == 3


async def test_after_another_sentence_it_is_news_again() -> None:
    api, clock = Posted(), Clock()
    recorder = Recorder(api, identity="me", clock=clock)  # type: ignore[arg-type]
    for note in (READY, SHORT, READY, SHORT):
        await recorder.post(about(), note)
        clock.now += TURN_SECONDS
    assert api.reasons == [READY.reason, SHORT.reason] * 2


async def test_op5_flapping_is_not_told_in_full() -> None:
    api, clock = Posted(), Clock()
    recorder = Recorder(api, identity="me", clock=clock)  # type: ignore[arg-type]
    for turn in range(100):
        await recorder.post(about(), SHORT if turn % 2 else READY)
        clock.now += 0.1
    assert len(api.reasons) <= 4


async def test_a_refused_event_is_no_error() -> None:
    await Recorder(Posted(refuses=True), identity="me").post(about(), READY)  # type: ignore[arg-type]
