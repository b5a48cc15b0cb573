"""Who writes the replicas of a group."""

from collections.abc import Callable

from disagg_crds import DisaggDeployment, Role
from disagg_operator.core.groups import GroupDecision, decide_group

Make = Callable[..., DisaggDeployment]


def test_replicas_are_put_back_after_a_hand_made_scale(make_deployment: Make) -> None:
    spec = make_deployment().spec.roles[Role.PREFILL]
    assert decide_group(spec, live=None, remembered=3) == GroupDecision(1, create=True)
    assert decide_group(spec, live=1, remembered=1) == GroupDecision(1)
    assert decide_group(spec, live=5, remembered=1) == GroupDecision(1, revert=True, found=5, by_hand=True)


def test_an_edit_of_the_spec_is_no_hand_made_scale(make_deployment: Make) -> None:
    spec = make_deployment(prefill={"replicas": 2, "gpu": {"type": "h100"}}).spec.roles[Role.PREFILL]
    assert decide_group(spec, live=1, remembered=1) == GroupDecision(2, revert=True, found=1)
    assert not decide_group(spec, live=1, remembered=None).by_hand


def test_op7_the_live_number_counts_and_not_the_remembered_one(make_deployment: Make) -> None:
    spec = make_deployment().spec.roles[Role.PREFILL]
    assert decide_group(spec, live=2, remembered=1).revert


def test_autoscaled_replicas_are_written_once_and_come_back_as_they_were(make_deployment: Make) -> None:
    autoscaling = {"mode": "planner", "min": 1, "max": 4, "initial": 2}
    deployment = make_deployment(decode={"autoscaling": autoscaling, "gpu": {"type": "h100"}})
    spec = deployment.spec.roles[Role.DECODE]
    assert decide_group(spec, live=None, remembered=None) == GroupDecision(2, create=True)
    assert decide_group(spec, live=4, remembered=2) == GroupDecision(4)
    assert decide_group(spec, live=None, remembered=4) == GroupDecision(4, create=True)
    assert decide_group(spec, live=0, remembered=4) == GroupDecision(0)
