"""The folder of a running deployment: logs, discovery file, token file, and where its control API listens.

One runtime a folder, held by a lock that the kernel drops however the process ends; a folder of a runtime that was
killed is simply taken over.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from disagg_contract.tokens import Tokens
from disagg_operator.errors import RuntimeStartError

STATE_FILE: Final = "state.json"
LOCK_FILE: Final = "lock"
DISCOVERY_FILE: Final = "workers.json"
TOKEN_FILE: Final = "tokens"
LOGS: Final = "logs"
OWNER_ALONE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningState:
    """What another process needs to find a runtime."""

    deployment: str
    pid: int
    control_url: str
    router_url: str
    state_dir: str


def state_root() -> Path:
    """Where state folders lie by default: ``$XDG_STATE_HOME/disagg``, or ``~/.local/state/disagg``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "disagg"


def default_state_dir(deployment: str) -> Path:
    """State folder of a deployment unless the user names another."""
    return state_root() / deployment


def read_state(state_dir: Path) -> RunningState | None:
    """The runtime that holds this folder, or None when none runs there."""
    try:
        document = json.loads((state_dir / STATE_FILE).read_text())
        state = RunningState(**document)
    except (OSError, ValueError, TypeError):
        return None
    return state if _locked(state_dir) else None


def running(root: Path | None = None) -> list[RunningState]:
    """Every runtime below ``root`` (the default place) that runs now, by name."""
    base = state_root() if root is None else root
    folders = sorted(path.parent for path in base.glob(f"*/{STATE_FILE}"))
    return [state for folder in folders if (state := read_state(folder)) is not None]


def write_state(state: RunningState) -> None:
    replace_file(Path(state.state_dir) / STATE_FILE, json.dumps(asdict(state), indent=1).encode() + b"\n")


def write_tokens(state_dir: Path, tokens: Tokens) -> Path:
    """The deployment's token file, for this user alone. Returns its path."""
    path = state_dir / TOKEN_FILE
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ALONE), "wb") as file:
        file.write(tokens.render())
    draft.replace(path)
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never a part."""
    draft = path.with_name(path.name + ".new")
    draft.write_bytes(content)
    draft.replace(path)


@contextmanager
def held(state_dir: Path) -> Iterator[None]:
    """Hold the folder. Raises RuntimeStartError when another runtime does, or when it cannot be written."""
    try:
        (state_dir / LOGS).mkdir(parents=True, exist_ok=True)
        lock = (state_dir / LOCK_FILE).open("w")
    except OSError as error:
        raise RuntimeStartError(f"state folder {state_dir}: {error.strerror}; choose another") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = read_state(state_dir)
            who = f" ({owner.deployment}, pid {owner.pid})" if owner is not None else ""
            raise RuntimeStartError(
                f"state folder {state_dir} belongs to a runtime that is running{who}; stop it or choose another folder"
            ) from error
        try:
            yield
        finally:
            (state_dir / STATE_FILE).unlink(missing_ok=True)
            (state_dir / TOKEN_FILE).unlink(missing_ok=True)


def _locked(state_dir: Path) -> bool:
    try:
        with (state_dir / LOCK_FILE).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
