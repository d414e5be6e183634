"""Publishes the engine's KV events on ZMQ, as SGLang does, and replays the latest of them on request.

PUB      topic | sequence, 8 bytes big-endian | msgpack [seconds, [event, ...], rank]
ROUTER   request: empty | first sequence         answers: empty | topic | sequence | payload, ..., an empty payload
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from workers.engine.kv.kv_events import BlockRemoved, BlockStored, KVEvent

_log = logging.getLogger(__name__)

END_OF_REPLAY = b"\xff" * 8
"""The sequence number of the last message of a replay."""


class KvEventPublisher:
    """A ZMQ publisher of KV events, and a server that replays the batches it keeps.

    `publish` is called from the event loop; `replay` runs as a task.
    """

    def __init__(
        self,
        host: str,
        port: int,
        page_size: int,
        batches_kept_max: int,
        topic: str = "",
        lora_ids: Mapping[str, int] | None = None,
    ) -> None:
        """Bind both sockets.

        Args:
            host: The address to bind.
            port: Where events are published; replays use the next port. 0 takes two free ports.
            page_size: Tokens of a KV block.
            batches_kept_max: Batches that can be replayed.
            topic: The first frame of each message.
            lora_ids: The numbers of the LoRA adapters by name, as events show them.

        Raises:
            OSError: A port is taken or the address is unknown.
        """
        self.topic = topic
        self._page_size = page_size
        self._lora_ids = lora_ids or {}
        self._context = zmq.asyncio.Context()
        self._publisher: zmq.Socket[bytes] = zmq.Socket(self._context, zmq.PUB)
        self._replayer = self._context.socket(zmq.ROUTER)
        try:
            for socket, number in ((self._publisher, port), (self._replayer, port + 1 if port else 0)):
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.SNDHWM, 100_000)
                socket.bind(f"tcp://{host}:{number or '*'}")
        except zmq.ZMQError as err:
            self.close()
            raise OSError(
                err.errno, f"KV events cannot be published on {host}:{port}: {err.strerror}"
            ) from err
        self.port, self.replay_port = (_port(socket) for socket in (self._publisher, self._replayer))
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=batches_kept_max)
        self._sequence = 0

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Send one batch; a subscriber that is too slow misses the batch and has to request a replay."""
        payload = msgspec.msgpack.encode([time.time(), list(self._encoded(events)), 0])
        self._kept.append((self._sequence, payload))
        frames = [self.topic.encode(), self._sequence.to_bytes(8, "big"), payload]
        self._sequence += 1
        self._publisher.send_multipart(frames, zmq.NOBLOCK)

    async def replay(self) -> None:
        """Answer requests for replays until the task is cancelled."""
        while True:
            client, *frames = await self._replayer.recv_multipart()
            start = int.from_bytes(frames[-1][:8], "big")
            _log.debug("replaying KV events from %d", start)
            for sequence, payload in [kept for kept in self._kept if kept[0] >= start]:
                number = sequence.to_bytes(8, "big")
                await self._replayer.send_multipart([client, b"", self.topic.encode(), number, payload])
            await self._replayer.send_multipart([client, b"", b"", END_OF_REPLAY, b""])

    def close(self) -> None:
        """Close both sockets."""
        self._publisher.close()
        self._replayer.close()
        self._context.term()

    def _encoded(self, events: Sequence[KVEvent]) -> Iterator[dict[str, Any]]:
        """Yield events as they are sent; neighbouring blocks of one sequence become one event."""
        for kind, group in groupby(events, key=type):
            if kind is BlockStored:
                stored = [event for event in group if isinstance(event, BlockStored)]
                yield from map(self._stored, _runs(stored))
            elif kind is BlockRemoved:
                hashes = [event.hash for event in group if isinstance(event, BlockRemoved)]
                yield {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
            else:
                yield {"type": "AllBlocksCleared"}

    def _stored(self, run: Sequence[BlockStored]) -> dict[str, Any]:
        first = run[0]
        stored: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [block.hash for block in run],
            "parent_block_hash": first.parent,
            "token_ids": [token for block in run for token in block.tokens],
            "block_size": self._page_size,
            "lora_id": self._lora_ids.get(first.lora),
            "medium": "GPU",
        }
        if first.lora:
            stored["lora_name"] = first.lora
        if first.salt:
            stored["cache_salt"] = first.salt
        return stored


def _port(socket: Any) -> int:
    return int(socket.getsockopt(zmq.LAST_ENDPOINT).rsplit(b":", 1)[1])


def _runs(events: Sequence[BlockStored]) -> Iterator[list[BlockStored]]:
    """Yield neighbouring blocks of one sequence together."""
    run: list[BlockStored] = []
    for event in events:
        last = run[-1] if run else None
        if last and (event.parent, event.salt, event.lora) != (last.hash, last.salt, last.lora):
            yield run
            run = []
        run.append(event)
    if run:
        yield run
