"""Listens to sharded channels wherever they are: one line to every server that has some.

A channel is astray while no server is known to send it: at first, after a line was lost, after its slot has moved.
`place` finds out who has it, and listens there.
"""

import asyncio
from collections.abc import Callable, Iterable

import hiredis

from radix_cache.redis.call import RedisDown
from radix_cache.redis.connection import RedisAddress, RedisConnection, ConnectionLost, Reply
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.redis.topology import parse_redirect, slot_of

PLACE_SECONDS_MAX = 2.0
PAUSE_SECONDS = 0.05


class _Ear:
    """A line, and what is listened to on it."""

    def __init__(self, line: RedisConnection) -> None:
        self.line = line
        self.channels: set[bytes] = set()
        self.heard = True


class ShardedSubscriber:
    """`told`: gets channel and message. `lost`: called when channels have gone astray."""

    def __init__(
        self,
        redis: ScriptCaller,
        channels: Iterable[bytes],
        told: Callable[[bytes, bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self.astray = set(channels)
        self._redis = redis
        self._told = told
        self._lost = lost
        self._ears: dict[tuple[str, str, int], _Ear] = {}
        self._asked: set[bytes] = set()
        self._confirmed = asyncio.Event()
        self._trouble = ""

    async def place(self) -> None:
        """Listens to what is astray; what cannot be heard now remains so. Raises LineLost if nothing can be."""
        anew = bool(self._ears)
        try:
            async with asyncio.timeout(PLACE_SECONDS_MAX):
                while self.astray:  # Slots may move meanwhile.
                    found = await self._redis.whereabouts(self.astray, anew=anew)
                    opened = await asyncio.gather(*(self._listen(*each) for each in found))
                    await self._settled()
                    anew = True
                    if not self.astray or not any(opened):
                        break
                    await asyncio.sleep(PAUSE_SECONDS)
        except (TimeoutError, RedisDown) as err:
            self._trouble = str(err) or "no server says that it sends them"
        self.astray |= self._asked
        self._asked.clear()
        if not self._ears:
            raise ConnectionLost(self._trouble or "no channel can be heard")

    def check(self) -> None:
        """Drops the lines on which nothing was heard since the last check; asks the others for a sign of life."""
        for name, ear in list(self._ears.items()):
            if ear.heard:
                ear.heard = False
                ear.line.tell(["PING"])
            else:
                self._trouble = "nothing is heard from it"
                self._drop(name)

    def close(self) -> None:
        for name in list(self._ears):
            self._drop(name)

    async def _listen(self, address: RedisAddress, channels: list[bytes]) -> bool:
        name = (address.path, address.host, address.port)
        ear = self._ears.get(name)
        if ear is None:
            try:
                line = await address.open(lambda line: self._line_lost(name, line), self._hear(name))
            except ConnectionLost as err:
                self._trouble = str(err)
                return False
            if not line.open:
                return False
            ear = self._ears[name] = _Ear(line)
        ear.channels.update(channels)
        self._asked.update(channels)
        self.astray.difference_update(channels)
        for channel in channels:  # One by one: a command's channels must be of one slot.
            ear.line.tell(["SSUBSCRIBE", channel])
        return True

    async def _settled(self) -> None:
        """Every subscription is confirmed or refused."""
        while self._asked:
            self._confirmed.clear()
            await self._confirmed.wait()

    def _hear(self, name: tuple[str, str, int]) -> Callable[[Reply], None]:
        def hear(message: Reply) -> None:
            ear = self._ears.get(name)
            if ear is None:
                return
            ear.heard = True
            if isinstance(message, hiredis.ReplyError):
                self._refused(name, ear, str(message))
            elif message[0] == b"smessage":
                self._told(message[1], message[2])
            elif message[0] == b"ssubscribe":
                self._asked.discard(message[1])
                self._confirmed.set()
            elif message[0] == b"sunsubscribe" and message[1] in ear.channels:
                self._stray(name, ear, {message[1]})

        return hear

    def _refused(self, name: tuple[str, str, int], ear: _Ear, error: str) -> None:
        self._trouble = error
        told = parse_redirect(error, name[1])
        if told is None:
            self._drop(name)
        else:
            self._stray(name, ear, {channel for channel in ear.channels if slot_of(channel) == told.slot})

    def _stray(self, name: tuple[str, str, int], ear: _Ear, channels: set[bytes]) -> None:
        """Nobody sends these on this line any more."""
        ear.channels -= channels
        self._asked -= channels
        self.astray |= channels
        self._confirmed.set()
        if not ear.channels:
            self._drop(name)
        self._lost()

    def _line_lost(self, name: tuple[str, str, int], line: RedisConnection) -> None:
        ear = self._ears.get(name)
        if ear is not None and ear.line is line:
            self._trouble = "the connection was lost"
            self._drop(name)

    def _drop(self, name: tuple[str, str, int]) -> None:
        ear = self._ears.pop(name)
        ear.line.close()
        if ear.channels:
            self._asked -= ear.channels
            self.astray |= ear.channels
            self._confirmed.set()
            self._lost()
