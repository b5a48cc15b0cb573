"""What every program says, and how it ends (exit status 2), when it cannot listen where it was told to.

An operating system's error names neither the flag nor what would be right, and event loops word it differently.
"""

from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EPERM
from typing import Final

from disagg_contract.errors import ConfigError

_NO_ADDRESS: Final = frozenset({EADDRNOTAVAIL, EAFNOSUPPORT})


class ListenError(ConfigError):
    """A port or an address cannot be had; the message names the flag that asked for it."""


def cannot_listen(
    error: OSError, *, host: str, port: int, flag: str = "--port", host_flag: str = "--host"
) -> ListenError:
    """The sentence about ``error``, which came of listening on ``host`` and ``port``, set by these flags."""
    where = host or "all addresses"
    if error.errno == EADDRINUSE:
        return ListenError(f"port {port} on {where} is in use; choose another with {flag}")
    # Event loops put the reason behind words of their own: "error while attempting to bind on address (…): …".
    reason = (error.strerror or str(error)).rpartition(": ")[2].lower()
    if error.errno in (EACCES, EPERM):
        return ListenError(f"port {port} on {where} may not be opened ({reason}); choose another with {flag}")
    if error.errno in _NO_ADDRESS or _is_name_error(error):
        return ListenError(
            f"{host_flag}={host}: {reason}; use an address of this machine, like 127.0.0.1, or 0.0.0.0 for all"
        )
    return ListenError(f"port {port} on {where} ({flag}) cannot be listened on: {reason}")


def _is_name_error(error: OSError) -> bool:
    """Whether a host's name could not be resolved; the class of that error lives in a module that does I/O."""
    return any(kind.__name__ in ("gaierror", "herror") for kind in type(error).__mro__)
