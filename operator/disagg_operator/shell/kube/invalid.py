"""The status of a spec that this version cannot read, for example one that a newer CRD admitted."""

from typing import Any

from disagg_crds import ConditionType, DeploymentStatus, Reason, SpecError
from disagg_operator.core.conditions import Answer
from disagg_operator.core.status import OWN, stamp


def invalid_status(
    document: dict[str, Any], error: SpecError, *, now: float
) -> tuple[DeploymentStatus, DeploymentStatus]:
    """Our part of the status before, and what it becomes: everything kept, Ready False with what is wrong."""
    stored = DeploymentStatus.model_validate(document.get("status") or {})
    own = tuple(condition for condition in stored.conditions if condition.type in OWN)
    before = stored.model_copy(update={"conditions": own})
    answer = Answer(ConditionType.READY, "False", Reason.INVALID_SPEC, str(error))
    generation = document["metadata"].get("generation")
    conditions = stamp([answer], previous=own, generation=generation, now=now)
    return before, before.model_copy(update={"conditions": conditions, "observed_generation": generation})
