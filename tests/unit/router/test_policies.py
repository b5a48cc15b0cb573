"""Choice: shares, load, prefixes, ties."""

import random
from collections import Counter

import pytest

from disagg_contract.config import RoutingPolicy
from disagg_contract.hashing import block_hashes, root_digest
from disagg_contract.labels import Role
from disagg_router.core.policies import make_policy
from disagg_router.core.prompt import PromptView

ROOT = root_digest(model="opt-13b")


def policy(name: str, weight: float = 1.0, **options):
    return make_policy(RoutingPolicy(name), rng=random.Random(7), overlap_weight=weight, **options)


def prompt(tokens) -> PromptView:
    return PromptView(len(tokens), -(-len(tokens) // 16), block_hashes(tokens, block_tokens=16, root=ROOT))


def short(number: int) -> PromptView:
    return prompt([number, number + 1])


@pytest.mark.parametrize("name", ["kv", "least-loaded", "round-robin"])
@pytest.mark.parametrize("role", list(Role))
def test_rt6_equal_idle_workers_share_the_load(made, name, role):
    pool = [made.worker(role) for _ in range(3)]
    chooser = policy(name)
    chosen = Counter()
    for number in range(300):
        view = short(number)
        worker = chooser.choose(pool, view)
        chooser.dispatched(worker, view)
        made.fleet.charge(worker, tokens=view.tokens, blocks=view.blocks).release()
        chosen[worker.name] += 1
    assert len(chosen) == 3
    assert all(70 <= count <= 130 for count in chosen.values())


@pytest.mark.parametrize("weight", [0.0, 1.0, 1e9])
def test_rt7_without_a_match_load_decides(made, weight):
    busy, idle = made.worker(), made.worker()
    chooser = policy("kv", weight)
    for number in range(50):
        chooser.dispatched(idle, prompt(range(number * 100, number * 100 + 64)))
    chooser.dispatched(busy, short(1))
    for _ in range(20):
        made.fleet.charge(busy, tokens=100, blocks=7)
    assert all(chooser.choose([busy, idle], prompt(range(9000, 9064))) is idle for _ in range(20))


def test_rt9_a_worker_that_may_be_gone_loses_its_prefixes(made):
    warm, cold = made.worker(), made.worker()
    chooser = policy("kv", 100.0)
    view = prompt(range(160))
    chooser.dispatched(warm, view)
    assert all(chooser.choose([warm, cold], view) is warm for _ in range(20))
    chooser.forget(warm)
    assert {chooser.choose([warm, cold], view).name for _ in range(40)} == {warm.name, cold.name}


def test_the_overlap_weight_goes_from_load_only_to_hits_only(made):
    warm, idle = made.worker(), made.worker()
    view = prompt(range(160))
    made.fleet.charge(warm, tokens=320, blocks=20)
    for weight, chosen in ((0.0, idle), (1.0, idle), (3.0, warm), (1e9, warm)):
        chooser = policy("kv", weight)
        chooser.dispatched(warm, view)
        assert chooser.choose([warm, idle], view) is chosen, weight  # warm: 20 blocks busy; idle: 10 to prefill


@pytest.mark.parametrize("role", [Role.PREFILL, Role.WORKER])
def test_in_seconds_weight_1_takes_the_worker_of_the_least_expected_ttft(made, role):
    warm, idle = made.worker(role), made.worker(role)
    view = prompt(range(160))
    for queued, weight, chosen in (
        (100, 1.0, warm),  # 100 queue and 1 is to prefill, against 160 to prefill
        (170, 1.0, idle),
        (100, 0.0, idle),
        (170, 2.0, warm),
        (100_000, 1e9, warm),
    ):
        chooser = policy("kv", weight, prefill_seconds=lambda tokens: 1e-4 * tokens)
        assert chooser.dispatched(warm, view) == 160
        assert chooser.dispatched(warm, view) == 1, "the last token is always computed"
        waiting = made.fleet.charge(warm, tokens=queued, blocks=1000)
        assert chooser.choose([warm, idle], view) is chosen, (queued, weight)
        waiting.prefilled()
        assert chooser.choose([warm, idle], view) is (warm if weight else idle), "what runs does not queue"
        waiting.release()


def test_a_policy_says_what_is_left_to_prefill(made):
    worker = made.worker()
    view = prompt(range(100))
    assert [policy(name).dispatched(worker, view) for name in ("kv", "least-loaded", "round-robin")] == [100] * 3
    chooser = policy("kv")
    chooser.dispatched(worker, view)
    assert chooser.dispatched(worker, prompt([*range(96), *range(500, 540)])) == 40


def test_prefill_goes_to_the_shortest_queue_in_tokens(made):
    many_short, one_long = made.worker(Role.PREFILL), made.worker(Role.PREFILL)
    for _ in range(5):
        made.fleet.charge(many_short, tokens=10, blocks=1)
    made.fleet.charge(one_long, tokens=1000, blocks=1)
    assert policy("least-loaded").choose([one_long, many_short], short(1)) is many_short


@pytest.mark.parametrize("name", ["kv", "least-loaded"])
def test_decode_goes_to_the_fewest_active_blocks(made, name):
    full, light = made.worker(Role.DECODE), made.worker(Role.DECODE)
    made.fleet.charge(full, tokens=0, blocks=100)
    for _ in range(5):
        made.fleet.charge(light, tokens=0, blocks=2)
    assert policy(name).choose([full, light], short(1)) is light


def test_round_robin_takes_turns_by_role(made):
    prefill = [made.worker(Role.PREFILL) for _ in range(2)]
    decode = [made.worker(Role.DECODE) for _ in range(3)]
    chooser = policy("round-robin")
    turns = [(chooser.choose(prefill, short(n)), chooser.choose(decode, short(n))) for n in range(6)]
    assert [p for p, _ in turns] == prefill * 3
    assert [d for _, d in turns] == decode * 2


def test_the_same_seed_gives_the_same_choices(made):
    pool = [made.worker() for _ in range(5)]
    first, second = policy("least-loaded"), policy("least-loaded")
    assert [first.choose(pool, short(n)) for n in range(50)] == [second.choose(pool, short(n)) for n in range(50)]
