"""The fast lane gives what the pods' own loops give, to 1e-9 s in every column.

Two instances in lockstep end their iterations at the same time but for the last bit of a float, which is not the same
where steps are added up and where they are skipped. What happens next may hang on that bit. So where such a tie is
found in a run that differs from the stepper's, the cluster lane, which rounds as the fast lane does, is the judge.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_contract.config import BatchPolicy
from disagg_load.columns import Columns
from disagg_simulator.deployment import Deployment, Mode
from disagg_simulator.fast import applies
from disagg_simulator.options import Lane, Options
from disagg_simulator.simulate import simulate
from tests.support.lanes import assert_equal, deployments, hangs_on_rounding, workloads

PREFILL_FIRST = (BatchPolicy.PREFILL_FIRST,)
CHUNKED = (BatchPolicy.CHUNKED,)
BOTH = PREFILL_FIRST + CHUNKED
STEPPER = Options(lane=Lane.STEPPER, gaps=True)
CLUSTER = Options(lane=Lane.CLUSTER, gaps=True)


def check(deployment: Deployment, requests: Columns, seed: int, options: Options = STEPPER) -> None:
    fast = Options(lane=Lane.FAST, gaps=True)
    assert applies(deployment, requests, fast)
    ours = simulate(deployment, requests, seed=seed, options=fast)
    try:
        assert_equal(ours, simulate(deployment, requests, seed=seed, options=options))
    except AssertionError:
        if options is not STEPPER or not hangs_on_rounding(deployment, requests, seed=seed):
            raise
        assert_equal(ours, simulate(deployment, requests, seed=seed, options=CLUSTER))


@settings(max_examples=100)
@given(deployment=deployments(Mode.COLOCATED, PREFILL_FIRST), requests=workloads(), seed=st.integers(0, 9))
def test_colocated_prefill_first_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=100)
@given(deployment=deployments(Mode.COLOCATED, CHUNKED), requests=workloads(), seed=st.integers(0, 9))
def test_colocated_chunked_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=200)
@given(deployment=deployments(Mode.DISAGGREGATED, BOTH), requests=workloads(), seed=st.integers(0, 9))
def test_disaggregated_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=50)
@given(deployment=deployments(Mode.PREFILL_ONLY, PREFILL_FIRST), requests=workloads(), seed=st.integers(0, 9))
def test_prefill_only_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=100)
@given(deployment=deployments(Mode.DECODE_ONLY, BOTH), requests=workloads(), seed=st.integers(0, 9))
def test_decode_only_equals_the_stepper(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed)


@settings(max_examples=40)
@given(deployment=deployments(Mode.DISAGGREGATED, BOTH), requests=workloads(), seed=st.integers(0, 9))
def test_disaggregated_equals_the_cluster_that_skips(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed, CLUSTER)


@settings(max_examples=40)
@given(deployment=deployments(Mode.COLOCATED, BOTH), requests=workloads(), seed=st.integers(0, 9))
def test_colocated_equals_the_cluster_that_skips(deployment: Deployment, requests: Columns, seed: int) -> None:
    check(deployment, requests, seed, CLUSTER)
