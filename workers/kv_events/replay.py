"""The replay of KV events: a request to an engine for the batches that it keeps, from a number on.

DEALER --> ROUTER   the number
DEALER <-- ROUTER   [empty, (topic,) sequence, payload] for each batch; the last message has no payload
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import zmq
import zmq.asyncio

from radix_cache.events import EventBatch
from radix_cache.loop_yield import LoopYielder
from workers.kv_events.bounded_socket import bounded_socket

log = logging.getLogger(__name__)

REPLAY_SECONDS_MAX = 5.0
REPLAYED_MAX = 50_000
REPLAYED_BYTES_MAX = 64 * 1024**2

Decode = Callable[[list[bytes]], Awaitable[EventBatch | None]]
"""Decodes the frames of one message; None for one that cannot be read."""


async def kept_batches(
    address: str | None, context: "zmq.asyncio.Context", decode: Decode, start: int, most: int | None = None
) -> list[EventBatch]:
    """Return the kept batches from number `start` on, at most `most` or REPLAYED_MAX.

    Those that came in time, if the engine is slow; none without an `address`.
    """
    if address is None:
        return []
    asking: zmq.asyncio.Socket | None = None
    found: list[EventBatch] = []
    batches_max, bytes_left = most or REPLAYED_MAX, REPLAYED_BYTES_MAX
    yielder = LoopYielder()
    try:
        asking = bounded_socket(context, zmq.DEALER)
        asking.connect(address)
        await asking.send_multipart([b"", start.to_bytes(8, "big")])
        async with asyncio.timeout(REPLAY_SECONDS_MAX):
            while len(found) < batches_max and bytes_left > 0:
                frames = await asking.recv_multipart()
                bytes_left -= sum(map(len, frames))
                await yielder.yield_if_due()
                if not frames[-1]:
                    return found
                batch = await decode(frames)
                if batch is not None:
                    found.append(batch)
            return found
    except (TimeoutError, zmq.ZMQError):
        log.debug("no complete replay of KV events from %s", address)
        return found
    finally:
        if asking is not None:
            asking.close()
