"""A load feed like SGLang's, over real ZMQ, that publishes what a test gives it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq


def stat(
    *,
    running: int = 0,
    waiting: int = 0,
    kv: int = 0,
    rank: int = 0,
    waiting_uncached: int = 0,
    prefilled: int = 0,
    prefill_us: int = 0,
) -> list[Any]:
    """Return one load report of a data-parallel rank, as SGLang writes it."""
    return [
        *("LoadStat", running, waiting, kv, 100_000, rank, waiting_uncached, kv, 64),
        *(prefilled, prefill_us),
    ]


class LoadPublisher:
    """A publisher of load reports; it listens on a loopback port from its creation on."""

    def __init__(self, port: int = 0) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.endpoint.rpartition(":")[2])
        self._number = 0

    def __enter__(self) -> "LoadPublisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, reading: Sequence[Any]) -> None:
        """Publish one load report."""
        self.send(msgspec.msgpack.encode(reading))

    def send(self, payload: bytes) -> None:
        """Publish these bytes as they are."""
        self._socket.send_multipart([b"load", self._number.to_bytes(8, "big"), payload])
        self._number += 1

    async def until_received(self, received: Callable[[], object], reading: Sequence[Any]) -> None:
        """Publish the load report repeatedly until `received` returns true."""
        async with asyncio.timeout(60):
            while not received():
                self.publish(reading)
                await asyncio.sleep(0.02)

    def close(self) -> None:
        self._socket.close()
        self._context.term()
