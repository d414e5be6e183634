"""How the bytes of blocks travel once both sides agree.

    tcp    over the connection itself, slab after slab
    shm    a ring of two slabs in shared memory, made by the decode side; the connection says which is full or free

                 prefill  fills 0, fills 1, . . . . . waits, fills 0, . . .
                 decode   . . . . . reads 0, frees 0, reads 1, frees 1, . . .

The segment is unlinked as soon as both sides have mapped it, so that nothing is left when one of them is killed.
"""

import mmap
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from workers.engine.disaggregation.handoff import HandoffFailed
from workers.engine.disaggregation.manifest import (
    Backend,
    receive_exactly,
    receive_frame,
    receive_into,
    send_frame,
)

SLAB_BYTES = 4 << 20
"""A run of blocks that travels together, at least one block."""
RING = 2

_MEMORY = Path("/dev/shm")  # noqa: S108 - names there are random, private, and gone at once
_SHARED = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
_SEGMENT = re.compile(r"radixgate-kv-[0-9a-f]{32}")
_FULL, _FREE = b"\1", b"\0"


class Sender(Protocol):
    """The prefill side's end."""

    def room(self, blocks: int) -> Tensor:
        """Where the next slab is to be written, [blocks, bytes]; waits until the peer has read what stood there."""
        ...

    def send(self, content: Tensor) -> None:
        """Pass on a slab that was written into its room."""
        ...

    def finish(self) -> None:
        """That was the last one; the connection is free for other words afterwards."""
        ...


class Receiver(Protocol):
    """The decode side's end."""

    def receive(self, blocks: int) -> Tensor:
        """The next slab, [blocks, bytes]; valid until the next call."""
        ...


class TcpSender:
    """Writes into the connection."""

    def __init__(self, connection: socket.socket, bytes_per_block: int) -> None:
        self._connection = connection
        self._buffer = torch.empty((blocks_per_slab(bytes_per_block), bytes_per_block), dtype=torch.uint8)

    def room(self, blocks: int) -> Tensor:
        """As promised by Sender."""
        return self._buffer[:blocks]

    def send(self, content: Tensor) -> None:
        """As promised by Sender."""
        self._connection.sendall(content.numpy().data.cast("B"))

    def finish(self) -> None:
        """As promised by Sender."""


class TcpReceiver:
    """Reads from the connection into one buffer."""

    def __init__(self, connection: socket.socket, bytes_per_block: int) -> None:
        self._connection = connection
        self._buffer = np.empty((blocks_per_slab(bytes_per_block), bytes_per_block), dtype=np.uint8)

    def receive(self, blocks: int) -> Tensor:
        """As promised by Receiver."""
        receive_into(self._connection, self._buffer[:blocks].data.cast("B"))
        return torch.from_numpy(self._buffer[:blocks])


class ShmSender:
    """Writes into the ring that the peer has made."""

    def __init__(self, connection: socket.socket, slabs: Tensor) -> None:
        self._connection = connection
        self._slabs = slabs
        self._count = 0

    def room(self, blocks: int) -> Tensor:
        """As promised by Sender."""
        if self._count >= RING:
            receive_exactly(self._connection, 1)
        return self._slabs[self._count % RING, :blocks]

    def send(self, content: Tensor) -> None:
        """As promised by Sender."""
        self._count += 1
        self._connection.sendall(_FULL)

    def finish(self) -> None:
        """As promised by Sender: the peer freed every slab but the last, and not all of that was heard yet."""
        receive_exactly(self._connection, max(0, min(self._count, RING) - 1))


class ShmReceiver:
    """Reads from the ring; frees the slab before when the next one is asked for."""

    def __init__(self, connection: socket.socket, slabs: Tensor) -> None:
        self._connection = connection
        self._slabs = slabs
        self._count = 0

    def receive(self, blocks: int) -> Tensor:
        """As promised by Receiver."""
        if self._count:
            self._connection.sendall(_FREE)
        receive_exactly(self._connection, 1)
        content = self._slabs[self._count % RING, :blocks]
        self._count += 1
        return content


def blocks_per_slab(bytes_per_block: int) -> int:
    """How many blocks travel together."""
    return max(1, SLAB_BYTES // bytes_per_block)


@contextmanager
def sending(connection: socket.socket, backend: Backend, bytes_per_block: int) -> Iterator[Sender]:
    """The prefill side's end of what the decode side asked for."""
    if backend == "tcp":
        yield TcpSender(connection, bytes_per_block)
        return
    name = str(receive_frame(connection).get("segment"))
    if not _SEGMENT.fullmatch(name):
        raise HandoffFailed("the peer named no segment of ours")
    with _mapped(_SHARED / name, bytes_per_block, os.O_RDWR | os.O_NOFOLLOW) as slabs:
        send_frame(connection, {"mapped": True})
        yield ShmSender(connection, slabs)


@contextmanager
def receiving(connection: socket.socket, backend: Backend, bytes_per_block: int) -> Iterator[Receiver]:
    """The decode side's end."""
    if backend == "tcp":
        yield TcpReceiver(connection, bytes_per_block)
        return
    path = _SHARED / f"radixgate-kv-{secrets.token_hex(16)}"
    try:
        with _mapped(path, bytes_per_block, os.O_RDWR | os.O_CREAT | os.O_EXCL) as slabs:
            send_frame(connection, {"segment": path.name})
            receive_frame(connection)
            path.unlink()
            yield ShmReceiver(connection, slabs)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _mapped(path: Path, bytes_per_block: int, flags: int) -> Iterator[Tensor]:
    """The ring, [slabs, blocks, bytes]; OSError as HandoffFailed."""
    shape = (RING, blocks_per_slab(bytes_per_block), bytes_per_block)
    size = shape[0] * shape[1] * shape[2]
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            if flags & os.O_CREAT:
                os.posix_fallocate(descriptor, 0, size)
            if os.fstat(descriptor).st_size != size:
                raise HandoffFailed("the segment has another size: the two sides are not the same")
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as err:
        raise HandoffFailed(f"shared memory is not to be had: {err.strerror}") from err
    # The tensors that were handed out keep the mapping alive; it goes with the last of them.
    yield torch.from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(shape)
