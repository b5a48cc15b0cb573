"""What comes of an API server that refuses a pod."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from disagg_crds import DisaggDeployment, DisaggGroup, Reason, Role
from disagg_operator.core.actions import Create
from disagg_operator.errors import ApiError, Forbidden
from disagg_operator.render.configs import Surroundings
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.drains import Drains
from disagg_operator.shell.kube.pods import Applied, Pods

Make = Callable[..., Any]


class Refusing:
    """An API server that refuses every pod; its sentence names the pod, as the real one's does."""

    def __init__(self, error: Callable[[str], ApiError]) -> None:
        self.error = error
        self.names: list[str] = []

    async def create(self, _resource: Any, manifest: Object, *, namespace: str) -> Object:
        self.names.append(manifest["metadata"]["name"])
        raise self.error(self.names[-1])


def create(api: Refusing, deployment: DisaggDeployment, group: DisaggGroup) -> Applied:
    pods = Pods(cast(Api, api), cast(Drains, None), around=Surroundings(image="disagg:0.1.0"))
    actions = [Create(Role.PREFILL, True), Create(Role.PREFILL, True)]
    return asyncio.run(
        pods.apply(actions, deployment=deployment, groups={Role.PREFILL: group}, pods={}, now=0.0),
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (lambda name: Forbidden(f'pods "{name}" is forbidden: exceeded quota: gpus'), Reason.QUOTA_EXCEEDED),
        (
            lambda name: Forbidden(
                f'pods "{name}" is forbidden: minimum cpu usage per Container is 1, but request is 50m'
            ),
            Reason.QUOTA_EXCEEDED,
        ),
        (lambda name: Forbidden(f'pods "{name}" is forbidden: no PriorityClass'), Reason.FORBIDDEN),
        (lambda name: ApiError(f'Pod "{name}" is invalid: spec', code=422), Reason.RECONCILE_FAILED),
    ],
)
def test_op5_a_refusal_reads_the_same_at_each_attempt(
    make_deployment: Make, make_group: Make, error: Callable[[str], ApiError], reason: Reason
) -> None:
    api = Refusing(error)
    first, second = (create(api, make_deployment(), make_group()) for _ in range(2))
    assert len(set(api.names)) == 2, "one attempt a pass, each with a name of its own"
    assert first.failure == second.failure
    assert first.failure is not None
    assert first.failure.reason is reason
    assert first.failure.message.startswith("spec.prefill: ")
    assert "chat-prefill" in first.failure.message
    assert not first.notes


def test_other_errors_are_for_the_queue_to_retry(make_deployment: Make, make_group: Make) -> None:
    with pytest.raises(ApiError, match="etcd"):
        create(Refusing(lambda name: ApiError("etcd is slow", code=500)), make_deployment(), make_group())
