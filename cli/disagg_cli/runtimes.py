"""Finding a running `disagg up`: its state folder says where its control API is, and that says the rest."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from disagg_contract.control import STATUS_PATH, RuntimeStatus
from disagg_contract.errors import DocumentError
from disagg_operator.shell.local.state import RunningState, default_state_dir, read_state, running

from .errors import CommandError, UsageError

_ANSWER_SECONDS = 10.0


def find_runtime(*, name: str | None = None, state_dir: str | None = None) -> RunningState:
    """The runtime in that folder, or of the deployment of that name, or else the only one that runs.

    Raises `CommandError` when none runs there, `UsageError` when it is not clear which one is meant.
    """
    if name is None and state_dir is None:
        found = running()
        if not found:
            raise CommandError(
                "nothing runs; start a deployment with disagg up FILE, or name the state folder of one that runs "
                "elsewhere with --state-dir"
            )
        if len(found) > 1:
            names = ", ".join(state.deployment for state in found)
            raise UsageError(f"several deployments run ({names}); name one")
        return found[0]
    folder = Path(state_dir) if state_dir is not None else default_state_dir(name or "")
    state = read_state(folder)
    if state is None:
        other = "" if state_dir is not None else ", or name another state folder with --state-dir"
        raise CommandError(f"nothing runs in {folder}; start a deployment with disagg up FILE{other}")
    return state


def read_status(state: RunningState) -> RuntimeStatus:
    """What the runtime says of itself. Raises `CommandError` when it doesn't."""
    url = state.control_url
    try:
        with urllib.request.urlopen(url + STATUS_PATH, timeout=_ANSWER_SECONDS) as answer:
            return RuntimeStatus.from_json(answer.read())
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"the control API of {state.deployment} at {url} does not answer ({reason})") from None
    except DocumentError as error:
        raise CommandError(f"the control API at {url} answers in a way this version does not know: {error}") from None
