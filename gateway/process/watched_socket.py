"""Sockets with TCP keepalive, which detects that the machine at the other end is gone without closing."""

import socket

from aiohttp.connector import AddrInfoType

INTERVAL_SECONDS = 5
PROBES = 3


def watched_socket(address: AddrInfoType, *, idle_seconds: int) -> socket.socket:
    """Return a new socket for a connection to an address, which the system probes when it is idle.

    A connection ends 15 seconds after the first probe without an answer. macOS lacks TCP_KEEPIDLE: there a
    connection is probed after two hours.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": idle_seconds, "TCP_KEEPINTVL": INTERVAL_SECONDS, "TCP_KEEPCNT": PROBES}
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
