"""The fast lane gives what the pods' own loops give, to 1e-9 s in every column."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_contract.config import BatchPolicy
from disagg_load.columns import Columns
from disagg_simulator.cluster import simulate_cluster
from disagg_simulator.deployment import Deployment, Mode
from disagg_simulator.fast import applies, simulate_fast
from disagg_simulator.options import DEFAULTS, Lane, Options
from tests.support.lanes import assert_equal, deployments, workloads

PREFILL_FIRST = (BatchPolicy.PREFILL_FIRST,)
CHUNKED = (BatchPolicy.CHUNKED,)
BOTH = PREFILL_FIRST + CHUNKED
STEPPER = Options(lane=Lane.STEPPER)


def check(deployment: Deployment, requests: Columns, seed: int, options: Options = STEPPER) -> None:
    assert applies(deployment, requests, DEFAULTS)
    fast = simulate_fast(deployment, requests, seed=seed)
    assert_equal(fast, simulate_cluster(deployment, requests, seed=seed, options=options))


@settings(max_examples=80)
@given(deployment=deployments(Mode.COLOCATED, PREFILL_FIRST), requests=workloads(), seed=st.integers(0, 9))
def test_colocated_prefill_first_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=80)
@given(deployment=deployments(Mode.COLOCATED, CHUNKED), requests=workloads(), seed=st.integers(0, 9))
def test_colocated_chunked_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=150)
@given(deployment=deployments(Mode.DISAGGREGATED, BOTH), requests=workloads(), seed=st.integers(0, 9))
def test_disaggregated_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=50)
@given(deployment=deployments(Mode.PREFILL_ONLY, PREFILL_FIRST), requests=workloads(), seed=st.integers(0, 9))
def test_prefill_only_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=80)
@given(deployment=deployments(Mode.DECODE_ONLY, BOTH), requests=workloads(), seed=st.integers(0, 9))
def test_decode_only_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)
