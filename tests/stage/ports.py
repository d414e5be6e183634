"""TCP ports for the servers of tests.

They are below the ports that operating systems give to outgoing connections (from 32768 on Linux), so no client
takes one by chance before its server listens or while that is restarted. The processes of one test run take theirs
from separate ranges.
"""

import itertools
import os
import socket

FIRST, LAST = 15_000, 32_000
PROCESSES_MAX = 16

_SIZE = (LAST - FIRST) // PROCESSES_MAX
_RANGE = FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES_MAX * _SIZE
# Runs that are under way at once start at different places.
_taken = itertools.count(os.getpid())


def free_ports(count: int) -> list[int]:
    """Return ports in a row on which no process listens; no later call in this process returns them soon."""
    row: list[int] = []
    while len(row) < count:
        port = _RANGE + next(_taken) % _SIZE
        if not _is_free(port):
            row = []
        elif row and port == row[-1] + 1:
            row.append(port)
        else:
            row = [port]
    return row


def free_port() -> int:
    """Return a port on which no process listens."""
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
