"""Reports of all gateways on one subject, gathered by one gateway when they are needed, and not before.

    gather -"look N question"-> the stream of turns --> every gateway: SET its report, "answered N gateway" --> GET

A gateway that does not answer in time is left out; an older version takes the message for a change of gateways, and
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
"""Reports that one gateway writes at a time, and questions that it sends at a time."""


class _Look:
    """One question on its way: the gateways that have written their report."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.all_written = asyncio.Event()


class GatewayReports:
    """Gathers the reports of the other gateways, and writes this gateway's report when another one gathers."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        *,
        subject: str,
        own: Callable[[str], bytes],
        gateways: Callable[[], int],
    ) -> None:
        """`gateway`: this gateway's name. `subject`: what the reports are about, in one word.

        `own` returns this gateway's report on a question, as text. `gateways` returns how many gateways are alive,
        this one included.
        """
        self._scripts = scripts
        self._keys = keys
        self._gateway = gateway
        self._asks, self._tells = (
            ("look", "answered") if subject == "queues" else (f"look {subject}", f"answered {subject}")
        )
        self._own = own
        self._gateways = gateways
        self._number = 0
        self._looks: dict[str, _Look] = {}
        self._asking: dict[str, asyncio.Task[list[bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.handlers: dict[bytes, Callable[[str], None]] = {
            self._asks.encode(): self._report_wanted,
            self._tells.encode(): self._report_written,
        }
        """The handlers of messages from other gateways, by kind; see TurnReader."""

    async def gather(self, question: str = "") -> list[bytes]:
        """Return the reports of the other gateways, as of now; none where too many questions are under way.

        Callers with the same question at the same time share the answer.
        """
        if self._gateways() < 2:
            return []
        task = self._asking.get(question)
        if task is None:
            if len(self._asking) >= LOOKS_MAX:
                return []
            task = self._asking[question] = asyncio.create_task(self._look(question))
            task.add_done_callback(lambda _: self._asking.pop(question, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop gathering, and drop the reports on their way."""
        for task in (*self._tasks, *self._asking.values()):
            task.cancel()

    def _report_written(self, value: str) -> None:
        """Handle the message of the stream that a gateway has written its report."""
        name, _, gateway = value.partition(" ")
        look = self._looks.get(name)
        if look is not None:
            look.written.add(gateway)
            if len(look.written) >= self._gateways() - 1:
                look.all_written.set()

    def _report_wanted(self, value: str) -> None:
        """Handle the message of the stream that a gateway gathers reports."""
        name, _, question = value.partition(" ")
        if name.startswith(self._gateway) or len(self._tasks) >= LOOKS_MAX:
            return
        task = asyncio.create_task(self._write_report(name, question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, question: str) -> list[bytes]:
        self._number += 1
        name = f"{self._gateway}:{self._number}"
        look = self._looks[name] = _Look()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await self._send(self._asks, f"{name} {question}" if question else name)
                await look.all_written.wait()
        except (TimeoutError, RedisDown):
            pass  # Some gateways do not answer: the reports of the others are shown all the same.
        finally:
            del self._looks[name]
        try:
            async with asyncio.timeout(SECONDS_MAX):
                reports = [
                    self._scripts.ask("GET", self._keys.report(name, gateway)) for gateway in look.written
                ]
                return [text for text in await asyncio.gather(*reports) if text is not None]
        except (TimeoutError, RedisDown) as err:
            log.warning("reports of other gateways cannot be read: %s", err or "not in time")
            return []

    async def _write_report(self, name: str, question: str) -> None:
        try:
            key = self._keys.report(name, self._gateway)
            await self._scripts.ask("SET", key, self._own(question), "PX", KEPT_MS)
            await self._send(self._tells, f"{name} {self._gateway}")
        except RedisDown:
            pass  # The gateway that gathers the reports finds that out, too.

    async def _send(self, kind: str, value: str) -> None:
        await self._scripts.ask("XADD", self._keys.turns, "MAXLEN", "~", STREAM_MAX, "*", kind, value)
