"""Preemption requests between gateways: one requests of the others to preempt batch work for a waiting request.

    send --"preempt N needs"--> the stream of turns --> gateways that can: SET NX N --the first--> its batch
                                                                                                   requests give way

The first gateway that can meet the need alone does so, so that not every gateway gives up a stream for one request.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.turn_stream import STREAM_MAX
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller

TAKEN_MS = 5000
TASKS_MAX = 64
"""Messages of one gateway at a time; further ones are dropped."""


class MakesRoom(Protocol):
    """The part of this gateway that can make batch requests give up their placements."""

    def can_make_room(self, needs: "Sequence[Need]") -> bool:
        """Return whether batch requests of this gateway could meet one of these needs."""
        ...

    def make_room(self, needs: "Sequence[Need]") -> bool:
        """Make batch requests give up their placements, and return whether that met one of these needs."""
        ...


class Need(msgspec.Struct, frozen=True, array_like=True):
    """Room that a waiting request needs: `tokens` uncached tokens at a worker that has `queued` tokens ahead."""

    worker: WorkerId
    tokens: int
    queued: int
    window: int
    """Tokens that the worker may have ahead for this request, its own included."""


class PreemptionRequests:
    """Sends preemption requests to other gateways, and handles theirs."""

    def __init__(self, scripts: ScriptCaller, keys: QueueKeys, gateway: str, makes_room: MakesRoom) -> None:
        """`gateway`: this gateway's name."""
        self._scripts = scripts
        self._keys = keys
        self._gateway = gateway
        self._makes_room = makes_room
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, needs: Sequence[Need]) -> None:
        """Request room that meets any one of these needs, the first being the best; nothing waits for it."""
        self._number += 1
        self._start(self._sent(f"{self._gateway}:{self._number} {msgspec.json.encode(needs).decode()}"))

    def receive(self, value: str) -> None:
        """Handle a message from the stream."""
        name, _, text = value.partition(" ")
        if name.startswith(self._gateway):
            return
        try:
            needs = msgspec.json.decode(text, type=list[Need])
        except msgspec.DecodeError:
            return  # A gateway of another version sends another form.
        if self._makes_room.can_make_room(needs):
            self._start(self._granted(name, needs))

    async def close(self) -> None:
        """Drop the messages that are on their way."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= TASKS_MAX:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sent(self, value: str) -> None:
        with suppress(RedisDown):  # The request waits for its turn all the same.
            await self._scripts.ask(
                "XADD", self._keys.turns, "MAXLEN", "~", STREAM_MAX, "*", "preempt", value
            )

    async def _granted(self, name: str, needs: Sequence[Need]) -> None:
        try:
            key = self._keys.preemption(name)
            mine = await self._scripts.ask("SET", key, self._gateway, "NX", "PX", TAKEN_MS)
        except RedisDown:
            return
        if mine is not None:
            self._makes_room.make_room(needs)
