"""Cut TCP connections of another process as a network failure does: the process keeps dead sockets. Linux.

pidfd_getfd(2) copies a descriptor of the process; shutting down the copy shuts down the connection itself.
"""

import ctypes
import os
import socket
from collections.abc import Collection

SYS_PIDFD_GETFD = 438
"""The same number on every architecture."""


class CannotCut(Exception):
    """The kernel does not allow it, or the permissions of this process are too few."""


def cut(pid: int, ports: Collection[int]) -> int:
    """Shut down the TCP connections of a process to these ports, and return their number. Raises CannotCut."""
    count = 0
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError) as err:
        raise CannotCut(f"pidfd_open: {err}") from err
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            connection = _copied(handle, pid, int(name))
            if connection is None:
                continue
            with connection:
                if connection.family == socket.AF_INET and _port(connection) in ports:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
    finally:
        os.close(handle)
    return count


def _copied(handle: int, pid: int, number: int) -> socket.socket | None:
    """Return a copy of the descriptor; None if it is no socket, or closed by now."""
    try:
        if not os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
            return None
    except OSError:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    copy = libc.syscall(SYS_PIDFD_GETFD, handle, number, 0)
    if copy < 0:
        raise CannotCut(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
    return socket.socket(fileno=copy)


def _port(connection: socket.socket) -> int | None:
    try:
        return int(connection.getpeername()[1])
    except OSError:
        return None
