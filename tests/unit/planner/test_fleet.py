"""Increases under way."""

from __future__ import annotations

from disagg_planner.core.fleet import Group, Tracked, track


def look(before: Tracked | None, now: float, replicas: int, ready: int | None) -> Tracked:
    group = Group(replicas=replicas, existing=replicas, ready=ready)
    return track(before, group, now=now, settle_seconds=60.0, pending_seconds=300.0)


def test_a_quiet_group_has_nothing_under_way() -> None:
    assert look(None, 0, 2, 2) == Tracked(replicas=2)


def test_an_increase_is_under_way_until_ready_for_a_whole_window() -> None:
    tracked = look(look(None, 0, 1, 1), 30, 3, 1)
    assert tracked.waiting
    tracked = look(tracked, 60, 3, 3)
    assert tracked.in_flight is not None
    assert not tracked.waiting
    assert look(tracked, 119, 3, 3).in_flight is not None
    assert look(tracked, 120, 3, 3).in_flight is None


def test_a_planner_that_starts_in_the_middle_sees_it_too() -> None:
    assert look(None, 0, 3, 1).waiting


def test_a_crash_is_no_increase() -> None:
    assert look(look(None, 0, 3, 3), 30, 3, 2).in_flight is None


def test_a_decrease_ends_it() -> None:
    tracked = look(look(None, 0, 1, 1), 30, 3, 1)
    assert look(tracked, 60, 2, 1).in_flight is None


def test_it_expires_and_recovers() -> None:
    tracked = look(look(None, 0, 1, 1), 30, 3, 1)
    tracked = look(tracked, 330, 3, 1)
    assert tracked.in_flight is not None
    assert tracked.in_flight.expired
    assert not tracked.waiting
    late = look(tracked, 360, 3, 3)
    assert late.in_flight is not None
    assert not late.in_flight.expired


def test_without_a_word_on_readiness_existing_instances_count() -> None:
    assert look(look(None, 0, 1, None), 30, 2, None).waiting is False
