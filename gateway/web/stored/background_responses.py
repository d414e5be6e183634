"""Responses in the background: they go on when their client has left, and are told by any gateway.

request --detached--> run --events, together--> database <-- follow: whoever asks for the stream, from any event
                       ^ cancelled when the database says that it is not to go on
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress

from gateway.database.background_store import LEASE_SECONDS, BackgroundStore, Events
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.response_store import ResponseStore, StoredResponse
from gateway.domain.errors import Overloaded, ResponsesUnavailable

log = logging.getLogger(__name__)

RUNS_MAX = 512
WRITE_SECONDS, LEASE_AGAIN_SECONDS = 0.2, 3.0
LOOK_SECONDS = 0.5
"""How often a gateway asks for more of what another one has under way."""
UNWRITTEN_BYTES_MAX = 32 * 1024 * 1024
RETRY_SECONDS = 1.0
CLOSE_SECONDS_MAX = 3.0


class BackgroundResponse:
    """One response. `task`: what works on it. `changed`: set, and made anew, when there is more in the database."""

    def __init__(self, stored: StoredResponse) -> None:
        self.stored = stored
        self.task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        self.ended = False
        self.writing = asyncio.Lock()  # what was said first is there first
        self._number = 0
        self._unwritten: list[bytes] = []
        self._size = 0
        self.response: bytes | None = None

    def say(self, events: bytes, response: bytes | None = None) -> None:
        """More of its stream, and how it looks now if that has changed."""
        self._unwritten.append(events)
        self._size += len(events)
        self.response = response if response is not None else self.response
        if self._size > UNWRITTEN_BYTES_MAX and self.task is not None:
            log.error("response %s is given up: its events cannot be written", self.stored.id)
            self.task.cancel()

    def take(self) -> tuple[Events, bytes | None]:
        """What is to be written."""
        text = b"".join(self._unwritten)
        # In JSON there are no line breaks: an empty line ends an event, and nothing else does.
        events = Events(number=self._number, count=text.count(b"\n\n"), text=text)
        response, self.response = self.response, None
        self._number += events.count
        self._unwritten, self._size = [], 0
        return events, response

    def tell(self) -> None:
        """There is more to be read."""
        self.changed.set()
        self.changed = asyncio.Event()


class BackgroundResponses:
    """Those of this gateway. `close` when it stops: what is left has failed."""

    def __init__(self, responses: ResponseStore, store: BackgroundStore) -> None:
        self.store = store
        self._responses = responses
        self._runs: dict[str, BackgroundResponse] = {}

    def __len__(self) -> int:
        return len(self._runs)

    async def begin(self, stored: StoredResponse, task: "asyncio.Task[None]") -> BackgroundResponse:
        """It is the task's from now on, whoever leaves. Raises Overloaded, ResponsesUnavailable."""
        if len(self._runs) >= RUNS_MAX:
            raise Overloaded(1.0)
        run = BackgroundResponse(stored)
        run.task = task
        self._runs[stored.id] = run
        try:
            await self._responses.put(stored, LEASE_SECONDS)
        except (DatabaseDown, DatabaseConflict) as err:
            del self._runs[stored.id]
            raise ResponsesUnavailable from err
        keeping = asyncio.create_task(self._keep(run))
        task.add_done_callback(lambda _: keeping.cancel())
        task.add_done_callback(lambda _: self._over(run))
        return run

    async def finish(self, run: BackgroundResponse, stored: StoredResponse) -> None:
        """It has ended, and all has been said."""
        run.ended = True
        async with run.writing:
            events, _ = run.take()
            while True:
                try:
                    await self.store.finish(stored, events)
                    return run.tell()
                except DatabaseDown as err:
                    log.warning("response %s waits: %s", stored.id, err)
                    await asyncio.sleep(RETRY_SECONDS)

    def look(self, identity: str) -> None:
        """It may have been cancelled."""
        if (run := self._runs.get(identity)) is not None and run.task is not None and not run.ended:
            run.task.cancel()

    async def follow(self, stored: StoredResponse, after: int) -> AsyncIterator[bytes]:
        """Its events after that number, until it has ended. Raises DatabaseDown."""
        while True:
            run = self._runs.get(stored.id)
            changed = run.changed if run is not None else None
            now = await self._responses.get(stored.tenant, stored.id)
            if now is not None and now.running:
                now = await self.store.looked_after(now)
            some = await self.store.events(stored.id, after)
            for events in some:
                yield _after(events, after)
                after = events.number + events.count - 1
            if some:
                continue
            if now is None or not now.running:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await (changed.wait() if changed is not None else asyncio.sleep(LOOK_SECONDS))

    async def drain(self, seconds: float) -> None:
        """They may end in this time."""
        if tasks := [run.task for run in self._runs.values() if run.task is not None]:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        runs = [run for run in self._runs.values() if run.task is not None and not run.ended]
        for run in runs:
            assert run.task is not None
            run.task.cancel()
        with suppress(TimeoutError, DatabaseDown):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await asyncio.gather(
                    *(run.task for run in runs if run.task is not None), return_exceptions=True
                )
                for run in runs:
                    await self.store.missed(run.stored)

    def _over(self, run: BackgroundResponse) -> None:
        self._runs.pop(run.stored.id, None)
        run.tell()

    async def _keep(self, run: BackgroundResponse) -> None:
        """Writes what it has said, and hears whether it is to go on."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not run.ended:
            async with run.writing:
                events, response = run.take()
                if events.count or response is not None or loop.time() >= due:
                    due = loop.time() + LEASE_AGAIN_SECONDS
                    if not await self._written(run, events, response):
                        self.look(run.stored.id)
                        return
                    run.tell()
            await asyncio.sleep(WRITE_SECONDS)

    async def _written(self, run: BackgroundResponse, events: Events, response: bytes | None) -> bool:
        while True:
            try:
                return await self.store.add(run.stored.id, events, response)
            except DatabaseDown as err:
                log.warning("response %s waits: %s", run.stored.id, err)
                await asyncio.sleep(RETRY_SECONDS)


def _after(events: Events, number: int) -> bytes:
    """Those that come after that number."""
    text = events.text
    for _ in range(number + 1 - events.number):
        text = text.partition(b"\n\n")[2]
    return text
