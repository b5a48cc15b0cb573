"""The Secret with a deployment's tokens, and how its pods see it: as a file, never in a flag or a variable.

The Secret's one key is a token file (see :mod:`disagg_contract.tokens`); where a rotation stands lies in annotations
beside it. Mounted as a folder, it is changed by the kubelet in one piece while the pod runs.
"""

import base64
import binascii
import math
from typing import Any, Final

from disagg_contract import labels
from disagg_contract.errors import ConfigError
from disagg_contract.tokens import TOKEN_FILE_KEY, Tokens
from disagg_crds import DisaggDeployment, child_name
from disagg_operator.core.tokens import Stage, TokenState
from disagg_operator.render.metadata import Manifest, component_labels, owned_by_deployment

STAGE: Final = f"{labels.GROUP}/token-stage"
SINCE: Final = f"{labels.GROUP}/token-since"
ASKED: Final = f"{labels.GROUP}/token-asked"
FOLDER: Final = "/var/run/secrets/disagg.dev"
TOKEN_FILE: Final = f"{FOLDER}/{TOKEN_FILE_KEY}"
"""Where a pod of ours finds the tokens."""
READABLE: Final = 0o444
"""By the pod's own user, whoever that is: the volume is the pod's alone."""


def token_secret_name(deployment: str) -> str:
    """Name of the Secret."""
    return child_name(deployment, "token")


def token_secret(deployment: DisaggDeployment, state: TokenState, *, version: str) -> Manifest:
    """The Secret of a deployment."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": token_secret_name(deployment.name),
            "namespace": deployment.namespace,
            "labels": {
                **component_labels(deployment.name, labels.Component.OPERATOR, version=version),
                labels.COMPONENT: "token",
            },
            "annotations": {STAGE: state.stage.value, SINCE: f"{state.since:.3f}", ASKED: state.asked},
            "ownerReferences": owned_by_deployment(deployment),
        },
        "type": "Opaque",
        "data": {TOKEN_FILE_KEY: base64.b64encode(Tokens(state.values).render()).decode()},
    }


def read_token_secret(secret: Manifest) -> TokenState | None:
    """What a Secret says; None where it holds no tokens that could be used."""
    encoded = (secret.get("data") or {}).get(TOKEN_FILE_KEY, "")
    notes: dict[str, Any] = secret["metadata"].get("annotations") or {}
    try:
        values = Tokens.parse(base64.b64decode(encoded, validate=True), name="Secret").values
    except (ConfigError, binascii.Error, ValueError):
        return None
    stage = Stage.STEADY
    if notes.get(STAGE) in tuple(Stage):
        stage = Stage(notes[STAGE])
    if len(values) == 1:
        stage = Stage.STEADY
    return TokenState(values=values, stage=stage, since=_seconds(notes.get(SINCE)), asked=notes.get(ASKED, ""))


def _seconds(text: object) -> float:
    try:
        found = float(str(text))
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


def token_volume(deployment: str) -> Manifest:
    """The pod's volume; it waits for the Secret, so that no program begins without a token."""
    return {
        "name": "token",
        "secret": {
            "secretName": token_secret_name(deployment),
            "defaultMode": READABLE,
            "items": [{"key": TOKEN_FILE_KEY, "path": TOKEN_FILE_KEY}],
        },
    }


TOKEN_MOUNT: Manifest = {"name": "token", "mountPath": FOLDER, "readOnly": True}
