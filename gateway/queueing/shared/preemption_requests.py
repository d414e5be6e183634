"""One gateway asks the others to have batch requests of theirs make room for a request that waits.

    asks --"preempt N needs"--> the stream of turns --> who can: SET NX N --the first--> its batch requests give way

The first that can do it alone does it, so that not every gateway gives up a stream for one request.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.turn_stream import STREAM_MAX
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller

TAKEN_MS = 5000
TASKS_MAX = 64
"""Of one gateway at a time: what is asked or offered beyond that is left undone."""


class Need(msgspec.Struct, frozen=True, array_like=True):
    """Room for so many uncached tokens at a worker that has so many queued, as who asks knows it."""

    worker: WorkerId
    tokens: int
    queued: int


class Favours:
    """`gateway`: whose. `can`: would batch requests here make enough room? `make`: let them."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        *,
        can: Callable[[Sequence[Need]], bool],
        make: Callable[[Sequence[Need]], bool],
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._gateway = gateway
        self._can = can
        self._make = make
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, needs: Sequence[Need]) -> None:
        """Any of these will do, the first is best. Nobody waits for it."""
        self._number += 1
        self._start(self._asked(f"{self._gateway}:{self._number} {msgspec.json.encode(needs).decode()}"))

    def heard(self, value: str) -> None:
        """From the stream."""
        name, _, text = value.partition(" ")
        if name.startswith(self._gateway):
            return
        try:
            needs = msgspec.json.decode(text, type=list[Need])
        except msgspec.DecodeError:
            return  # A gateway of another version asks in other words.
        if self._can(needs):
            self._start(self._granted(name, needs))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= TASKS_MAX:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _asked(self, value: str) -> None:
        with suppress(RedisDown):  # It waits for its turn, as it does anyway.
            await self._scripts.ask(
                "XADD", self._keys.turns, "MAXLEN", "~", STREAM_MAX, "*", "preempt", value
            )

    async def _granted(self, name: str, needs: Sequence[Need]) -> None:
        try:
            key = self._keys.favour(name)
            mine = await self._scripts.ask("SET", key, self._gateway, "NX", "PX", TAKEN_MS)
        except RedisDown:
            return
        if mine is not None:
            self._make(needs)
