"""What each gateway says of its queues, gathered by one of them when somebody looks; nothing is sent before.

    look --"look N"--> the stream of turns --> every gateway: SET its report, "told N gateway" --> GET, by who looks

A gateway that does not answer in time is left out; an older one takes the word for news of gateways, and is silent.
"""

import asyncio
import logging
from collections.abc import Callable

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.turn_stream import STREAM_MAX
from radix_cache.redis.call import RedisDown
from radix_cache.redis.scripts import ScriptCaller

log = logging.getLogger(__name__)

SECONDS_MAX = 0.5
KEPT_MS = 5000
LOOKS_MAX = 8
"""Reports that one gateway writes at a time."""


class Reports:
    """`gateway`: whose. `own`: its report, as text. `gateways`: how many live, this one included."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        *,
        own: Callable[[], bytes],
        gateways: Callable[[], int],
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._gateway = gateway
        self._own = own
        self._gateways = gateways
        self._number = 0
        self._told: set[str] = set()
        self._all_told = asyncio.Event()
        self._looking: asyncio.Task[list[bytes]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def of_others(self) -> list[bytes]:
        """What the other gateways say now. Who asks while somebody else does shares the answer."""
        if self._gateways() < 2:
            return []
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    def told(self, value: str) -> None:
        """From the stream: a gateway has written its report."""
        name, _, gateway = value.partition(" ")
        if name == self._name:
            self._told.add(gateway)
            if len(self._told) >= self._gateways() - 1:
                self._all_told.set()

    def asked(self, name: str) -> None:
        """From the stream: somebody looks."""
        if name.startswith(self._gateway) or len(self._tasks) >= LOOKS_MAX:
            return
        task = asyncio.create_task(self._tell(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in (*self._tasks, *([self._looking] if self._looking is not None else [])):
            task.cancel()

    @property
    def _name(self) -> str:
        return f"{self._gateway}:{self._number}"

    async def _look(self) -> list[bytes]:
        self._number += 1
        self._told, name = set(), self._name
        self._all_told.clear()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await self._say("look", name)
                await self._all_told.wait()
        except (TimeoutError, RedisDown):
            pass  # Some are silent: what the others say is shown all the same.
        try:
            async with asyncio.timeout(SECONDS_MAX):
                told = [self._scripts.ask("GET", self._keys.report(name, gateway)) for gateway in self._told]
                return [text for text in await asyncio.gather(*told) if text is not None]
        except (TimeoutError, RedisDown) as err:
            log.warning("what other gateways say of their queues cannot be read: %s", err or "not in time")
            return []

    async def _tell(self, name: str) -> None:
        try:
            key = self._keys.report(name, self._gateway)
            await self._scripts.ask("SET", key, self._own(), "PX", KEPT_MS)
            await self._say("told", f"{name} {self._gateway}")
        except RedisDown:
            pass  # Whoever looks finds that out, too.

    async def _say(self, kind: str, value: str) -> None:
        await self._scripts.ask("XADD", self._keys.turns, "MAXLEN", "~", STREAM_MAX, "*", kind, value)
