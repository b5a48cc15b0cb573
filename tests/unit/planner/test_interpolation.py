"""Reading the profile between and beyond its points."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from disagg_contract.profile import DecodePoint, PrefillPoint, Profile
from disagg_planner.core.interpolation import ProfileTable, interpolate
from disagg_planner.errors import SettingsError


def test_linear_between_points() -> None:
    assert interpolate([1.0, 3.0], [10.0, 20.0], 2.0) == 15.0


def test_pl11_outside_of_the_profile_the_nearest_point_counts(table: ProfileTable) -> None:
    assert table.ttft_seconds(1) == table.ttft_seconds(128)
    assert table.ttft_seconds(10**6) == table.ttft_seconds(2048)
    assert table.tpot_seconds(10**6, 10**6) == table.tpot_seconds(2048, 10**4)
    assert table.best_decode(10**6, 1.0) == table.best_decode(2048, 1.0)


def test_beyond_the_longest_prompt_throughput_is_clamped_so_work_still_grows(table: ProfileTable) -> None:
    assert table.prefill_service_seconds(20480) == pytest.approx(10 * table.prefill_service_seconds(2048))


def test_reference_row_4_prompt_of_755_tokens(table: ProfileTable) -> None:
    assert table.ttft_seconds(755) == pytest.approx(0.104, rel=0.01)


def test_decode_step_at_61_sequences(table: ProfileTable) -> None:
    assert table.tpot_seconds(855, 61) == pytest.approx(0.043, rel=0.01)


def test_best_decode_is_bound_by_kv_room(table: ProfileTable) -> None:
    best = table.best_decode(855, 0.1)
    assert best.batch * 855 <= 58_594
    assert best.tokens_per_second == pytest.approx(1400, rel=0.07)


def test_best_decode_stops_inside_a_segment_at_the_limit(table: ProfileTable) -> None:
    best = table.best_decode(855, 0.03)
    assert table.tpot_seconds(855, best.batch) == pytest.approx(0.03)


def test_a_limit_below_one_sequence_leaves_nothing(table: ProfileTable) -> None:
    assert table.best_decode(855, 0.001).tokens_per_second == 0.0


def test_tables_need_not_be_monotone() -> None:
    points = (DecodePoint(100, 1, 0.02, 50), DecodePoint(100, 8, 0.06, 130), DecodePoint(100, 16, 0.03, 500))
    profile = Profile("odd", "g", "g", 1, 1, 1, 1, 10_000, 1.0, (PrefillPoint(100, 0.1, 1000),), points)
    assert ProfileTable(profile).best_decode(100, 0.04).batch == 16


def test_pipeline_stages_let_prompts_overlap() -> None:
    profile = Profile(
        "piped", "g", "g", 1, 4, 1, 1, 1000, 1.0, (PrefillPoint(1000, 0.4, 8000.0),), (DecodePoint(100, 1, 0.02, 50),)
    )
    assert ProfileTable(profile).prefill_service_seconds(1000) == pytest.approx(0.125)


def test_a_profile_that_cannot_be_used_is_refused(profile: Profile) -> None:
    with pytest.raises(SettingsError, match="needs prefill and decode points"):
        ProfileTable(replace(profile, decode=()))
    with pytest.raises(SettingsError, match="must be positive"):
        ProfileTable(replace(profile, prefill=(PrefillPoint(100, 0.0, 1.0),)))
    with pytest.raises(SettingsError, match="must be positive"):
        ProfileTable(replace(profile, decode=(DecodePoint(100, 1, math.nan, 1.0),)))
