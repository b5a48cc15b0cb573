"""Conditions change their time only with their status, and survive the trip through the API server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from disagg_crds import Condition, ConditionType, Reason, RoleStatus, find_condition, format_time, set_condition
from disagg_crds.status import DeploymentStatus, PlacementStatus

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def condition(status: str, reason: Reason, when: datetime, type_: ConditionType = ConditionType.READY) -> Condition:
    return Condition.model_validate(
        {"type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": when}
    )


def test_op5_an_unchanged_answer_changes_nothing() -> None:
    first = set_condition((), condition("True", Reason.ALL_INSTANCES_READY, T0))
    again = first
    for minute in range(1, 6):
        again = set_condition(again, condition("True", Reason.ALL_INSTANCES_READY, T0 + timedelta(minutes=minute)))
    assert again == first


def test_a_new_reason_keeps_the_time_and_a_new_status_does_not() -> None:
    later = T0 + timedelta(minutes=1)
    first = set_condition((), condition("False", Reason.INSTANCES_NOT_SCHEDULED, T0))
    (reason,) = set_condition(first, condition("False", Reason.INSTANCES_NOT_READY, later))
    assert (reason.reason, reason.last_transition_time) == ("InstancesNotReady", T0)
    (status,) = set_condition(first, condition("True", Reason.ALL_INSTANCES_READY, later))
    assert status.last_transition_time == later


def test_other_types_stay_in_their_places() -> None:
    both = set_condition(
        set_condition((), condition("True", Reason.FITS, T0, ConditionType.MODEL_FITS)),
        condition("False", Reason.CREATING, T0),
    )
    assert [c.type for c in set_condition(both, condition("True", Reason.FITS, T0, ConditionType.MODEL_FITS))] == [
        "ModelFits",
        "Ready",
    ]
    assert find_condition(both, ConditionType.READY) == both[1]
    assert find_condition(both, ConditionType.SCALING_ACTIVE) is None


def test_times_are_whole_seconds_in_utc() -> None:
    local = datetime(2026, 1, 1, 3, 4, 5, 999999, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(local) == "2026-01-01T01:04:05Z"
    assert condition("True", Reason.FITS, local).to_dict()["lastTransitionTime"] == "2026-01-01T01:04:05Z"


def test_an_unknown_count_is_absent_not_zero() -> None:
    assert RoleStatus(desired=2).to_dict() == {"desired": 2}
    assert RoleStatus(desired=2, ready=0).to_dict() == {"desired": 2, "ready": 0, "summary": "0/2"}
    assert "attempts" not in PlacementStatus(domain="d1").to_dict()


def test_a_status_of_a_newer_operator_is_still_read() -> None:
    status = DeploymentStatus.model_validate(
        {"observedGeneration": 3, "roles": {"prefill": {"ready": 1, "summary": "1/1", "hot": True}}, "new": 1}
    )
    assert status.roles["prefill"].ready == 1  # type: ignore[index]
