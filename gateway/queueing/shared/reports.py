"""Reports of all gateways on their queues, gathered by one gateway when an operator looks; none is sent before.

    look --"look N"--> the stream of turns --> every gateway: SET its report, "told N gateway" --> GET, by the first

A gateway that does not answer in time is left out; an older version takes the message for news of gateways, and
does not answer.
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


class QueueReports:
    """Gathers the reports of the other gateways, and writes this gateway's report when another one looks."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        *,
        own: Callable[[], bytes],
        gateways: Callable[[], int],
    ) -> None:
        """`gateway`: this gateway's name. `own` returns its report, as text.

        `gateways` returns how many gateways are alive, this one included.
        """
        self._scripts = scripts
        self._keys = keys
        self._gateway = gateway
        self._own = own
        self._gateways = gateways
        self._number = 0
        self._written: set[str] = set()
        self._all_written = asyncio.Event()
        self._looking: asyncio.Task[list[bytes]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def gather(self) -> list[bytes]:
        """Return the reports of the other gateways, as of now. Callers at the same time share the answer."""
        if self._gateways() < 2:
            return []
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    def report_written(self, value: str) -> None:
        """Handle the message of the stream that a gateway has written its report."""
        name, _, gateway = value.partition(" ")
        if name == self._name:
            self._written.add(gateway)
            if len(self._written) >= self._gateways() - 1:
                self._all_written.set()

    def report_wanted(self, name: str) -> None:
        """Handle the message of the stream that a gateway looks."""
        if name.startswith(self._gateway) or len(self._tasks) >= LOOKS_MAX:
            return
        task = asyncio.create_task(self._write_report(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop looking, and drop the reports on their way."""
        for task in (*self._tasks, *([self._looking] if self._looking is not None else [])):
            task.cancel()

    @property
    def _name(self) -> str:
        return f"{self._gateway}:{self._number}"

    async def _look(self) -> list[bytes]:
        self._number += 1
        self._written, name = set(), self._name
        self._all_written.clear()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await self._send("look", name)
                await self._all_written.wait()
        except (TimeoutError, RedisDown):
            pass  # Some gateways do not answer: the reports of the others are shown all the same.
        try:
            async with asyncio.timeout(SECONDS_MAX):
                reports = [
                    self._scripts.ask("GET", self._keys.report(name, gateway)) for gateway in self._written
                ]
                return [text for text in await asyncio.gather(*reports) if text is not None]
        except (TimeoutError, RedisDown) as err:
            log.warning("reports of other gateways on their queues cannot be read: %s", err or "not in time")
            return []

    async def _write_report(self, name: str) -> None:
        try:
            key = self._keys.report(name, self._gateway)
            await self._scripts.ask("SET", key, self._own(), "PX", KEPT_MS)
            await self._send("told", f"{name} {self._gateway}")
        except RedisDown:
            pass  # The gateway that looks finds that out, too.

    async def _send(self, kind: str, value: str) -> None:
        await self._scripts.ask("XADD", self._keys.turns, "MAXLEN", "~", STREAM_MAX, "*", kind, value)
