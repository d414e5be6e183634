"""A provider that wants to be asked for nothing for a while: one gateway hears it, and tells the others.

    asks --429, Retry-After--> "rest GATEWAY MS PROVIDER" --> the stream of turns --> every gateway lets it alone

What is told is a duration, since clocks differ. Where Redis is away each gateway finds out by itself.
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
"""Of one gateway at a time: what is to be told beyond that is not."""

MS_DIGITS_MAX = 12


class Rests:
    """`gateway`: whose. `rest`: let a provider alone for so many seconds."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        rest: Callable[[WorkerId, float], None],
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._gateway = gateway
        self._rest = rest
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, worker: WorkerId, seconds: float) -> None:
        """Nobody waits for it."""
        if len(self._tasks) >= TASKS_MAX:
            return
        task = asyncio.create_task(self._told(f"{self._gateway} {round(seconds * 1000)} {worker}"))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def heard(self, value: str) -> None:
        """From the stream."""
        gateway, ms, worker = (*value.split(" ", 2), "", "")[:3]
        if gateway != self._gateway and ms.isdecimal() and ms.isascii() and len(ms) <= MS_DIGITS_MAX:
            self._rest(WorkerId(worker), int(ms) / 1000)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _told(self, value: str) -> None:
        with suppress(RedisDown):
            await self._scripts.ask("XADD", self._keys.turns, "MAXLEN", "~", STREAM_MAX, "*", "rest", value)
