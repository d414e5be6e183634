"""Finds free TCP ports for engines that are launched, and for a gateway that is started without settings.

A restarted engine keeps its ports.
"""

import random
import socket

PORT_MIN, PORT_MAX = 15_000, 32_000
"""Below the ports that operating systems give to outgoing connections (from 32768 on Linux): no other process
gets one of these by chance while the engine restarts."""


TRIED_MAX = 50


def free_ports(host: str, count: int = 1) -> int:
    """Return the first of `count` consecutive ports on which no process listens."""
    while True:
        first = random.randrange(PORT_MIN, PORT_MAX - count)
        if all(_is_free(host, first + offset) for offset in range(count)):
            return first


def first_free_port(host: str, wanted: int) -> int:
    """Return the first port from `wanted` on, in steps of two, on which no process listens."""
    for port in range(wanted, min(wanted + 2 * TRIED_MAX, PORT_MAX), 2):
        if _is_free(host, port):
            return port
    return free_ports(host)


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True
