"""Moves the bytes of KV blocks between two engines, over TCP or through shared memory.

    tcp    over the connection itself, slab after slab
    shm    a ring of two slabs in shared memory, made by the decode side; bytes on the connection mark slabs as full
           or free

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
from workers.engine.disaggregation.messages import (
    Backend,
    receive_exactly,
    receive_frame,
    receive_into,
    send_frame,
)

SLAB_BYTES = 4 << 20
"""The size of a slab: consecutive blocks that travel together, at least one block."""
RING_SLABS = 2

# Names there are random, private and removed at once.
_MEMORY = Path("/dev/shm")  # noqa: S108  # nosec B108
_SHARED = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
_SEGMENT = re.compile(r"radixgate-kv-[0-9a-f]{32}")
_FULL, _FREE = b"\1", b"\0"


class BlockSender(Protocol):
    """The prefill side's end of a transfer."""

    def next_buffer(self, blocks: int) -> Tensor:
        """Return the buffer for the next slab, [blocks, bytes], once the peer has read its earlier content."""
        ...

    def send(self, content: Tensor) -> None:
        """Send a slab that was written into its buffer."""
        ...

    def finish(self) -> None:
        """End the transfer; afterwards the connection is free for messages."""
        ...


class BlockReceiver(Protocol):
    """The decode side's end of a transfer."""

    def receive(self, blocks: int) -> Tensor:
        """Return the next slab, [blocks, bytes]; it is valid until the next call."""
        ...


class TcpSender:
    """Sends slabs over the connection."""

    def __init__(self, connection: socket.socket, bytes_per_block: int) -> None:
        self._connection = connection
        self._buffer = torch.empty((blocks_per_slab(bytes_per_block), bytes_per_block), dtype=torch.uint8)

    def next_buffer(self, blocks: int) -> Tensor:
        """Return the one buffer; every slab has been sent when the next one is written."""
        return self._buffer[:blocks]

    def send(self, content: Tensor) -> None:
        """Write the slab into the connection."""
        self._connection.sendall(content.numpy().data.cast("B"))

    def finish(self) -> None:
        """Do nothing: the peer sends nothing during the transfer."""


class TcpReceiver:
    """Receives slabs from the connection into one buffer."""

    def __init__(self, connection: socket.socket, bytes_per_block: int) -> None:
        self._connection = connection
        self._buffer = np.empty((blocks_per_slab(bytes_per_block), bytes_per_block), dtype=np.uint8)

    def receive(self, blocks: int) -> Tensor:
        """Read the next slab from the connection."""
        receive_into(self._connection, self._buffer[:blocks].data.cast("B"))
        return torch.from_numpy(self._buffer[:blocks])


class ShmSender:
    """Writes slabs into the shared memory that the peer has made."""

    def __init__(self, connection: socket.socket, slabs: Tensor) -> None:
        self._connection = connection
        self._slabs = slabs
        self._count = 0

    def next_buffer(self, blocks: int) -> Tensor:
        """Return the next slab of the ring, once the peer has freed it."""
        if self._count >= RING_SLABS:
            receive_exactly(self._connection, 1)
        return self._slabs[self._count % RING_SLABS, :blocks]

    def send(self, content: Tensor) -> None:
        """Mark the slab as full."""
        self._count += 1
        self._connection.sendall(_FULL)

    def finish(self) -> None:
        """Read the remaining marks: the peer frees every slab but the last."""
        receive_exactly(self._connection, max(0, min(self._count, RING_SLABS) - 1))


class ShmReceiver:
    """Reads slabs from shared memory; each call frees the slab of the call before."""

    def __init__(self, connection: socket.socket, slabs: Tensor) -> None:
        self._connection = connection
        self._slabs = slabs
        self._count = 0

    def receive(self, blocks: int) -> Tensor:
        """Free the previous slab, and return the next one once it is full."""
        if self._count:
            self._connection.sendall(_FREE)
        receive_exactly(self._connection, 1)
        content = self._slabs[self._count % RING_SLABS, :blocks]
        self._count += 1
        return content


def blocks_per_slab(bytes_per_block: int) -> int:
    """Return how many blocks travel together."""
    return max(1, SLAB_BYTES // bytes_per_block)


@contextmanager
def open_sender(connection: socket.socket, backend: Backend, bytes_per_block: int) -> Iterator[BlockSender]:
    """Open the prefill side's end of the channel that the decode side requested."""
    if backend == "tcp":
        yield TcpSender(connection, bytes_per_block)
        return
    name = str(receive_frame(connection).get("segment"))
    if not _SEGMENT.fullmatch(name):
        raise HandoffFailed("the peer sent an invalid name of a shared memory segment")
    with _mapped(_SHARED / name, bytes_per_block, os.O_RDWR | os.O_NOFOLLOW) as slabs:
        send_frame(connection, {"mapped": True})
        yield ShmSender(connection, slabs)


@contextmanager
def open_receiver(
    connection: socket.socket, backend: Backend, bytes_per_block: int
) -> Iterator[BlockReceiver]:
    """Open the decode side's end of the channel."""
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
    """Map the ring, [slabs, blocks, bytes]. Raises HandoffFailed where the system refuses."""
    shape = (RING_SLABS, blocks_per_slab(bytes_per_block), bytes_per_block)
    size = shape[0] * shape[1] * shape[2]
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            if flags & os.O_CREAT:
                os.posix_fallocate(descriptor, 0, size)
            if os.fstat(descriptor).st_size != size:
                raise HandoffFailed("the shared memory segment has another size: the two engines differ")
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as err:
        raise HandoffFailed(f"shared memory is not available: {err.strerror}") from err
    # Tensors over the mapping keep it alive; it is unmapped with the last of them.
    yield torch.from_numpy(np.frombuffer(memory, dtype=np.uint8)).view(shape)
