"""Corrections of the index, sent by the processes of a machine to the first one, which has the whole tree.

A worker that reported fewer blocks than were known has lost the rest, and all nodes below them; only the first
process has these nodes. A correction is one datagram on a unix socket. If it is too large or lost, the worker's
next report brings it again.
"""

import asyncio
import logging
import socket
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace

log = logging.getLogger(__name__)

BYTES_MAX = 128 * 1024
READ_AT_ONCE_MAX = 16

Correct = Callable[[Namespace, Hashes, WorkerId, int], None]
"""Records that a worker had only so many leading blocks of a path, and has the whole path again."""


class _Correction(msgspec.Struct, array_like=True):
    """The content of one datagram."""

    namespace: bytes
    hashes: bytes
    worker: str
    blocks: int


class CorrectionWriter:
    """Sends corrections to the first process, which listens at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, namespace: Namespace, hashes: Hashes, worker: WorkerId, blocks: int) -> None:
        """Send a correction; does nothing if it is too large or the first process does not listen."""
        data = msgspec.msgpack.encode(_Correction(namespace.packed(), hashes.tobytes(), worker, blocks))
        if len(data) <= BYTES_MAX:
            with suppress(OSError):
                self._socket.sendto(data, self._path)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class CorrectionReader:
    """Receives the corrections of other processes at `path`, and applies them."""

    def __init__(self, path: Path, correct: Correct) -> None:
        path.unlink(missing_ok=True)
        self._correct = correct
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def start(self) -> None:
        """Receive from now on, in the running event loop."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

    def close(self) -> None:
        """Stop receiving."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()

    def _receive(self) -> None:
        for _ in range(READ_AT_ONCE_MAX):
            try:
                data = self._socket.recv(BYTES_MAX)
            except OSError:
                return
            try:
                found = msgspec.msgpack.decode(data, type=_Correction)
                namespace, hashes = Namespace.unpack(found.namespace), array("Q", found.hashes)
            except (msgspec.DecodeError, ValueError):
                log.warning("a correction of the prefix index is unreadable")
                continue
            self._correct(namespace, hashes, WorkerId(found.worker), found.blocks)
