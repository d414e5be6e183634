"""Backoff of providers for all gateways: a gateway that got a 429 of a provider notifies the others.

    request --429, Retry-After--> "rest GATEWAY MS PROVIDER" --> the stream of turns --> every gateway avoids it

The message holds a duration, since clocks differ. While Redis is away each gateway backs off by itself.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.turn_stream import STREAM_MAX
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller

TASKS_MAX = 64
"""Messages of one gateway at a time; further ones are dropped."""

MS_DIGITS_MAX = 12


class ProviderBackoff:
    """Notifies other gateways of providers that are busy, and is notified by them."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        rest: Callable[[WorkerId, float], None],
    ) -> None:
        """`gateway`: this gateway's name. `rest`: called to leave a provider alone for so many seconds."""
        self._scripts = scripts
        self._keys = keys
        self._gateway = gateway
        self._rest = rest
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, worker: WorkerId, seconds: float) -> None:
        """Notify the other gateways; nothing waits for it."""
        if len(self._tasks) >= TASKS_MAX:
            return
        task = asyncio.create_task(self._send(f"{self._gateway} {round(seconds * 1000)} {worker}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def receive(self, value: str) -> None:
        """Handle a message from the stream."""
        gateway, ms, worker = (*value.split(" ", 2), "", "")[:3]
        if gateway != self._gateway and ms.isdecimal() and ms.isascii() and len(ms) <= MS_DIGITS_MAX:
            self._rest(WorkerId(worker), int(ms) / 1000)

    async def close(self) -> None:
        """Drop the messages that are on their way."""
        for task in self._tasks:
            task.cancel()

    async def _send(self, value: str) -> None:
        with suppress(RedisDown):
            await self._scripts.ask("XADD", self._keys.turns, "MAXLEN", "~", STREAM_MAX, "*", "rest", value)
