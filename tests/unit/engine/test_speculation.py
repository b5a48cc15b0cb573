"""Speculative decoding: tokens a step, what a step costs, and that answers keep their length."""

from __future__ import annotations

import random

import pytest

from disagg_engine.batching import Admission, BatchingConfig, BatchingLoop, Request, Speculation
from disagg_engine.errors import SettingError
from disagg_engine.kv import CountingLedger
from disagg_engine.timemodel import BatchShape, Chunk, Roofline


def request(name: str, prompt: int = 100, output: int = 10) -> Request:
    return Request(request_id=name, prompt_tokens=prompt, max_tokens=output)


def run_with(speculation: Speculation | None, *, driver: type, time_model: object, output: int = 100, count: int = 1):  # type: ignore[no-untyped-def]
    loop = BatchingLoop(
        config=BatchingConfig(speculation=speculation),
        time_model=time_model,  # type: ignore[arg-type]
        ledger=CountingLedger(capacity_tokens=100_000),
    )
    run = driver(loop)
    run.submit_all([request(str(n), 100, output) for n in range(count)])
    return run.run()


@pytest.mark.parametrize(
    ("draft", "acceptance", "expected"),
    [(4, 0.0, 1.0), (4, 1.0, 5.0), (3, 0.5, 1.875), (5, 0.8, (1 - 0.8**6) / 0.2)],
)
def test_expected_tokens_are_leviathans(draft: int, acceptance: float, expected: float) -> None:
    assert Speculation(draft_tokens=draft, acceptance=acceptance).expected_tokens == pytest.approx(expected)


@pytest.mark.parametrize(("acceptance", "steps"), [(0.0, 99), (1.0, 20), (0.5, 53)])
def test_an_answer_takes_as_many_steps_as_expected_and_keeps_its_length(
    acceptance: float, steps: int, driver: type, linear_time: type
) -> None:
    run = run_with(Speculation(draft_tokens=4, acceptance=acceptance), driver=driver, time_model=linear_time())
    assert len(run.tokens["0"]) == 100
    # The first token is the prompt's; 99 more at 1, 5 and 1.9375 a step.
    assert len(run.iterations) - 1 == pytest.approx(steps, abs=2)
    assert sum(done.tokens for done in run.completed) == 100


def test_a_step_costs_the_verified_tokens_and_the_drafts(driver: type, opt13b: Roofline) -> None:
    run = run_with(
        Speculation(draft_tokens=4, acceptance=0.7, draft_cost=0.05), driver=driver, time_model=opt13b, count=3
    )
    second = run.iterations[1]
    verify = opt13b.iteration_seconds(BatchShape(chunks=(Chunk(100, 5),) * 3)).seconds
    plain = opt13b.iteration_seconds(BatchShape(decode_sequences=3, decode_context_tokens=300)).seconds
    assert second.end_seconds - second.start_seconds == pytest.approx(verify + 4 * 0.05 * plain)
    assert (second.decode_sequences, second.decode_context_tokens, second.chunks) == (3, 300, ())


def test_memory_bound_decodes_gain_and_useless_drafts_lose(driver: type, opt13b: Roofline) -> None:
    plain = run_with(None, driver=driver, time_model=opt13b).clock
    good = run_with(Speculation(draft_tokens=4, acceptance=0.8, draft_cost=0.02), driver=driver, time_model=opt13b)
    useless = run_with(Speculation(draft_tokens=4, acceptance=0.0, draft_cost=0.02), driver=driver, time_model=opt13b)
    assert good.clock < 0.5 * plain
    assert useless.clock > plain


def test_drawn_acceptance_is_reproducible_and_right_on_average(driver: type, linear_time: type) -> None:
    def draw(request_id: str, step: int) -> float:
        return random.Random(f"{request_id}/{step}").random()

    speculation = Speculation(draft_tokens=4, acceptance=0.6, draw=draw)
    counts = [speculation.tokens("a", step) for step in range(4000)]
    assert counts == [speculation.tokens("a", step) for step in range(4000)]
    assert set(counts) == {1, 2, 3, 4, 5}
    assert sum(counts) / 4000 == pytest.approx(speculation.expected_tokens, rel=0.03)
    run = run_with(speculation, driver=driver, time_model=linear_time(), count=5)
    assert all(len(times) == 100 for times in run.tokens.values())
    assert run.tokens == run_with(speculation, driver=driver, time_model=linear_time(), count=5).tokens


def test_room_for_all_verified_tokens_is_had_under_preemption(driver: type, linear_time: type) -> None:
    loop = BatchingLoop(
        config=BatchingConfig(
            admission=Admission.PREEMPT, watermark=0.0, speculation=Speculation(draft_tokens=3, acceptance=0.9)
        ),
        time_model=linear_time(),
        ledger=CountingLedger(capacity_tokens=260),
    )
    run = driver(loop)
    run.submit_all([request("old", 100, 60), request("young", 100, 60)])
    run.run()
    assert run.preempted.count("young") >= 1
    assert [len(run.tokens[name]) for name in ("old", "young")] == [60, 60]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("draft_tokens", 0),
        ("acceptance", -0.1),
        ("acceptance", 1.1),
        ("acceptance", float("nan")),
        ("draft_cost", -1.0),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(SettingError, match=field):
        Speculation(**{"draft_tokens": 4, "acceptance": 0.5, field: value})  # type: ignore[arg-type]
