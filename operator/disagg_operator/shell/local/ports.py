"""Free ports on the loopback address."""

import socket

from disagg_contract.listening import cannot_listen

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
    """Make sure that the port of the router, which the user asked for, is free. Raises ListenError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise cannot_listen(error, host=LOOPBACK, port=port) from error
