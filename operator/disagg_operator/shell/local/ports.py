"""Free ports on the loopback address."""

import errno
import socket

from disagg_operator.errors import RuntimeStartError

LOOPBACK = "127.0.0.1"


class Ports:
    """Hands out ports that nobody listens on and that it has not handed out lately.

    Between asking and listening somebody else may take one; the child then ends with "port in use" and starts again
    with another.
    """

    def __init__(self) -> None:
        self._recent: list[int] = []

    def draw(self) -> int:
        while True:
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                port: int = probe.getsockname()[1]
            if port not in self._recent:
                self._recent = [*self._recent[-255:], port]
                return port


def claim(port: int) -> None:
    """Make sure that a port the user asked for is free. Raises RuntimeStartError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise RuntimeStartError(f"port {port} on {LOOPBACK}: {error.strerror}") from error
            raise RuntimeStartError(
                f"port {port} on {LOOPBACK} is in use; stop what listens there or choose another port (0: any)"
            ) from error
