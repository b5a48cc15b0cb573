"""Row 13 of the reference numbers: what a lost decode instance costs, by starting again and by migration.

Source: an independent calculation with the roofline model (Llama-3.1-70B on 8 H100, prompt of 2,000 tokens, lost after
g output tokens). Starting again repeats the prefill and g decode steps; a migration prefills prompt and answer
so far, once, elsewhere.
"""

from __future__ import annotations

from array import array

import pytest

from disagg_contract.config import RoutingPolicy
from disagg_contract.labels import Role
from disagg_engine.batching import BatchingConfig
from disagg_engine.catalogue import default
from disagg_engine.instance import Instance
from disagg_engine.timemodel import BatchShape, Chunk, Roofline
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Group, Mode
from disagg_simulator.options import Fault, Options
from disagg_simulator.simulate import simulate

PROMPT = 2000


@pytest.fixture(scope="module")
def model() -> Roofline:
    catalogue = default()
    return Roofline(Instance(model=catalogue.model("llama-3.1-70b"), gpu=catalogue.gpu("h100"), tensor=8))


def prefill(model: Roofline, tokens: int) -> float:
    return model.iteration_seconds(BatchShape(chunks=(Chunk(0, tokens),))).seconds


@pytest.mark.parametrize(
    ("tokens", "retry", "retry_in_batch", "migrate"),
    [(100, 1.57, 1.77, 0.118), (500, 7.40, 8.49, 0.140), (1000, 14.7, 17.1, 0.168)],
)
def test_row13_migration_against_starting_again(
    model: Roofline, tokens: int, retry: float, retry_in_batch: float, migrate: float
) -> None:
    alone = model.decode_window(1, PROMPT, tokens)
    in_batch = model.decode_window(32, 32 * PROMPT, tokens)
    assert alone is not None
    assert in_batch is not None
    assert prefill(model, PROMPT) + alone == pytest.approx(retry, rel=0.01)
    assert prefill(model, PROMPT) + in_batch == pytest.approx(retry_in_batch, rel=0.01)
    assert prefill(model, PROMPT + tokens) == pytest.approx(migrate, rel=0.01)


@pytest.mark.parametrize("tokens", [100, 500, 1000])
def test_row13_a_simulated_loss_costs_one_longer_prefill(model: Roofline, tokens: int) -> None:
    """The client has `tokens` tokens when its instance is lost; the next one comes a longer prefill later."""
    group = Group(instance=model.instance, time_model=model, batching=BatchingConfig(role=Role.WORKER), replicas=2)
    deployment = Deployment(mode=Mode.COLOCATED, workers=(group,), routing=RoutingPolicy.ROUND_ROBIN)
    output = tokens + 200
    request = Columns(
        name="one",
        arrival_seconds=array("d", [0.0]),
        input_tokens=array("i", [PROMPT]),
        output_tokens=array("i", [output]),
    )
    before = model.decode_window(1, PROMPT, tokens - 1)
    rest = model.decode_window(1, PROMPT + tokens, output - tokens - 1)
    assert before is not None
    assert rest is not None
    lost = prefill(model, PROMPT) + before + 0.001  # just into the next step
    fault = Fault(at_seconds=lost, role=Role.WORKER, index=0)
    recording = simulate(deployment, request, seed=0, options=Options(faults=(fault,)))
    assert recording.tokens[0] == output
    assert recording.finish[0] == pytest.approx(lost + prefill(model, PROMPT + tokens) + rest, abs=1e-9)
