"""The part of `metadata` that our programs read, and the group's constants."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from .base import DNS_LABEL_PATTERN, Model, Timestamp

GROUP: Final = "disagg.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final[Literal["disagg.dev/v1alpha1"]] = "disagg.dev/v1alpha1"
DEPLOYMENT_KIND: Final = "DisaggDeployment"
DEPLOYMENT_PLURAL: Final = "disaggdeployments"
GROUP_KIND: Final = "DisaggGroup"
GROUP_PLURAL: Final = "disagggroups"
CATEGORY: Final = "disagg"


class ObjectMeta(Model):
    """Standard object metadata; what we do not read (managedFields, finalizers of others) is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name, unique in the namespace."""
    namespace: Annotated[str, Field(max_length=63)] | None = None
    """Namespace."""
    uid: str | None = None
    """Identity that no later object of the same name shares."""
    generation: int | None = None
    """Counts changes of the spec."""
    resource_version: str | None = None
    """Opaque version for optimistic concurrency."""
    creation_timestamp: Timestamp | None = None
    """When the object was created."""
    deletion_timestamp: Timestamp | None = None
    """When deletion was asked for; absent while the object is wanted."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""

    @property
    def names_a_service(self) -> bool:
        """True when the name is a DNS-1035 label."""
        return re.fullmatch(DNS_LABEL_PATTERN.removeprefix("^").removesuffix("$"), self.name) is not None
