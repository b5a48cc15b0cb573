"""Events that are a reason to reconcile."""

from typing import Any

from disagg_operator.shell.kube.wishes import Wishes


def event(kind: str | None, **fields: Any) -> dict[str, Any]:
    metadata = {"uid": "u1", "generation": 1, "resourceVersion": "10", **fields}
    return {"type": kind, "object": {"metadata": metadata}}


def test_op8_a_status_write_is_no_reason_to_look_again() -> None:
    wishes = Wishes()
    assert wishes.are_new(event("ADDED"))
    assert not wishes.are_new(event("MODIFIED", resourceVersion="11"))
    assert not wishes.are_new(event(None, resourceVersion="12")), "a watch that starts anew lists everything"
    assert wishes.are_new(event("MODIFIED", resourceVersion="13", generation=2))


def test_what_people_write_beside_the_spec_is_one() -> None:
    wishes = Wishes()
    wishes.are_new(event("ADDED"))
    assert wishes.are_new(event("MODIFIED", annotations={"disagg.dev/restartedAt": "now"}))
    assert wishes.are_new(event("MODIFIED", labels={"team": "a"}))
    assert wishes.are_new(event("MODIFIED", ownerReferences=[{"uid": "other"}]))
    assert wishes.are_new(event("MODIFIED", deletionTimestamp="2026-01-01T00:00:00Z"))


def test_objects_are_told_apart_and_forgotten() -> None:
    wishes = Wishes()
    assert wishes.are_new(event("ADDED"))
    assert wishes.are_new(event("ADDED", uid="u2"))
    assert wishes.are_new(event("DELETED"))
    assert wishes.are_new(event("ADDED"))
