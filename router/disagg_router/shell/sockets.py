"""What every connection of the router has set, on both sides.

Delayed segments are off already: asyncio and uvloop set TCP_NODELAY. Keep-alive probes find the other end gone when its
machine died without a word, which neither a waiting nor a silent stream would notice by itself.
"""

import asyncio
import socket
from typing import Final

IDLE_SECONDS: Final = 15
INTERVAL_SECONDS: Final = 5
PROBES: Final = 3


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Close the connection some 30 s after the peer's machine stopped answering."""
    found = transport.get_extra_info("socket")
    if found is None:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", INTERVAL_SECONDS), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
