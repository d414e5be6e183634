"""Publishes the engine's KV events on ZMQ, as SGLang does, and replays the last of them to who asks.

PUB      topic | sequence, 8 bytes big-endian | msgpack [seconds, [event, ...], rank]
ROUTER   asked: empty | sequence from which      answers: empty | topic | sequence | payload, ..., an empty payload
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from workers.engine.kv.events import BlockRemoved, BlockStored, KVEvent

_log = logging.getLogger(__name__)

END = b"\xff" * 8


class KvEventPublisher:
    """`publish` from the event loop; `replay` as a task. Addresses as bound: `endpoint`, `replay_endpoint`."""

    def __init__(self, host: str, port: int, page_size: int, batches_kept_max: int, topic: str = "") -> None:
        """`port`: 0 takes free ones; else the next one is the replay's. Raises OSError."""
        self.topic = topic
        self._page_size = page_size
        self._context = zmq.asyncio.Context()
        self._out: zmq.Socket[bytes] = zmq.Socket(self._context, zmq.PUB)
        self._asked = self._context.socket(zmq.ROUTER)
        try:
            for kind, at in ((self._out, port), (self._asked, port + 1 if port else 0)):
                kind.setsockopt(zmq.LINGER, 0)
                kind.setsockopt(zmq.SNDHWM, 100_000)
                kind.bind(f"tcp://{host}:{at or '*'}")
        except zmq.ZMQError as err:
            self.close()
            raise OSError(
                err.errno, f"KV events cannot be published on {host}:{port}: {err.strerror}"
            ) from err
        self.port, self.replay_port = (_port(socket) for socket in (self._out, self._asked))
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=batches_kept_max)
        self._sequence = 0

    def publish(self, events: Sequence[KVEvent]) -> None:
        """One batch. Whoever is too slow misses it, and asks for it."""
        payload = msgspec.msgpack.encode([time.time(), list(_on_the_wire(events, self._page_size)), 0])
        self._kept.append((self._sequence, payload))
        frames = [self.topic.encode(), self._sequence.to_bytes(8, "big"), payload]
        self._sequence += 1
        self._out.send_multipart(frames, zmq.NOBLOCK)

    async def replay(self) -> None:
        """Answers who asks, for as long as it is not cancelled."""
        while True:
            who, *frames = await self._asked.recv_multipart()
            start = int.from_bytes(frames[-1][:8], "big")
            _log.debug("replaying KV events from %d", start)
            for sequence, payload in [kept for kept in self._kept if kept[0] >= start]:
                number = sequence.to_bytes(8, "big")
                await self._asked.send_multipart([who, b"", self.topic.encode(), number, payload])
            await self._asked.send_multipart([who, b"", b"", END, b""])

    def close(self) -> None:
        self._out.close()
        self._asked.close()
        self._context.term()


def _port(socket: Any) -> int:
    return int(socket.getsockopt(zmq.LAST_ENDPOINT).rsplit(b":", 1)[1])


def _on_the_wire(events: Sequence[KVEvent], page_size: int) -> Iterator[dict[str, Any]]:
    """Blocks that follow each other go out as one event."""
    for kind, group in groupby(events, key=type):
        if kind is BlockStored:
            yield from _stored([event for event in group if isinstance(event, BlockStored)], page_size)
        elif kind is BlockRemoved:
            hashes = [event.hash for event in group if isinstance(event, BlockRemoved)]
            yield {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
        else:
            yield {"type": "AllBlocksCleared"}


def _stored(events: Sequence[BlockStored], page_size: int) -> Iterator[dict[str, Any]]:
    run: list[BlockStored] = []
    for event in [*events, None]:
        if run and (event is None or event.parent != run[-1].hash or event.salt != run[0].salt):
            stored: dict[str, Any] = {
                "type": "BlockStored",
                "block_hashes": [block.hash for block in run],
                "parent_block_hash": run[0].parent,
                "token_ids": [token for block in run for token in block.tokens],
                "block_size": page_size,
                "lora_id": None,
                "medium": "GPU",
            }
            if run[0].salt:
                stored["cache_salt"] = run[0].salt
            yield stored
            run = []
        if event is not None:
            run.append(event)
