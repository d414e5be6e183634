"""Ports for an engine that is launched, which it keeps when it is started again."""

import random
import socket

LOWEST, HIGHEST = 15_000, 32_000
"""Systems give callers ports from 32768 on (Linux) or above: nobody gets these by chance while it is away."""


def free_ports(host: str, count: int = 1) -> int:
    """The first of so many ports in a row at which nobody listens."""
    while True:
        first = random.randrange(LOWEST, HIGHEST - count)
        if all(_is_free(host, first + at) for at in range(count)):
            return first


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True
