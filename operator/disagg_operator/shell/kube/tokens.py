"""Keeps the Secret with a deployment's tokens: made once, kept as it is, replaced step by step when that is due.

Read by name only, so that the operator needs no right to list Secrets. What is read stays in this process: tokens are
in no log, no Event and no status.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from disagg_contract import labels
from disagg_contract.tokens import Tokens
from disagg_crds import DisaggDeployment
from disagg_operator.core.status import Note
from disagg_operator.core.tokens import Stage, TokenRules, TokenState, advance, due_seconds
from disagg_operator.errors import ApiError
from disagg_operator.render.tokens import read_token_secret, token_secret, token_secret_name
from disagg_operator.shell.kube import children
from disagg_operator.shell.kube.api import Api, Object
from disagg_operator.shell.kube.resources import SECRETS

TOKEN_BYTES = 32
"""Random bytes in a token."""


def draw() -> str:
    """A token that nobody has seen."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Kept:
    """A deployment's tokens; ``again_seconds`` until the next step of a rotation; ``notes`` for people."""

    tokens: Tokens
    again_seconds: float | None
    notes: tuple[Note, ...] = field(default=())


class TokenSecrets:
    """``keep`` is called at every reconcile; it writes only when something has to change."""

    def __init__(self, api: Api, *, rules: TokenRules, version: str, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._rules = rules
        self._version = version
        self._clock = clock

    async def keep(self, deployment: DisaggDeployment) -> Kept:
        """Make, rotate or leave alone the Secret. Raises ApiError where another one has its name."""
        found = await self._api.find(SECRETS, token_secret_name(deployment.name), namespace=deployment.namespace)
        before = None
        if found is not None:
            _must_be_ours(found, deployment)
            before = read_token_secret(found)
        now, asked = self._clock(), deployment.metadata.annotations.get(labels.ROTATE_TOKEN, "")
        state = advance(before, asked=asked, now=now, fresh=draw(), rules=self._rules)
        manifest = token_secret(deployment, state, version=self._version)
        if found is None or state != before or not children.covers(found, _without_kind(manifest)):
            await self._api.apply(SECRETS, manifest, namespace=deployment.namespace)
        return Kept(
            tokens=Tokens(state.values),
            again_seconds=due_seconds(state, asked=asked, now=now, rules=self._rules),
            notes=self._notes(deployment, before, state),
        )

    def _notes(self, deployment: DisaggDeployment, before: TokenState | None, after: TokenState) -> tuple[Note, ...]:
        name = token_secret_name(deployment.name)
        if before is None:
            return (Note("Normal", "TokenCreated", f"Secret {name} holds a new token of this deployment"),)
        if before.stage is after.stage:
            return ()
        step = f"{self._rules.step_seconds:g} s"
        told = {
            Stage.LEARNING: Note(
                "Normal", "TokenRotating", f"Secret {name}: a new token is accepted from now on, and used in {step}"
            ),
            Stage.SHOWING: Note(
                "Normal", "TokenRotating", f"Secret {name}: the new token is used; the old one is accepted for {step}"
            ),
            Stage.STEADY: Note("Normal", "TokenRotated", f"Secret {name}: the old token is worth nothing any more"),
        }
        return (told[after.stage],)


def _must_be_ours(found: Object, deployment: DisaggDeployment) -> None:
    children.must_be_free(found | {"kind": SECRETS.kind}, deployment)
    own = found["metadata"].get("labels") or {}
    if (own.get(labels.MANAGED_BY), own.get(labels.DEPLOYMENT)) != (labels.MANAGER, deployment.name):
        raise ApiError(
            f"Secret {found['metadata']['name']} was not made by this operator and keeps the name that the token of "
            f"{deployment.name} needs; rename the Secret or the deployment"
        )


def _without_kind(manifest: Object) -> Object:
    return {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
