"""Background responses, which continue after their client has disconnected, and which any gateway can stream.

request --detached--> response --events, in batches--> database <-- follow: any gateway, from any event on
                       ^ cancelled when it is cancelled in the database
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress

from gateway.database.background_store import LEASE_SECONDS, BackgroundStore, StoredEvents
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.response_store import ResponseStore, StoredResponse
from gateway.domain.errors import Overloaded, ResponsesUnavailable

log = logging.getLogger(__name__)

RESPONSES_MAX = 512
"""The most background responses under way in one gateway."""
WRITE_SECONDS = 0.2
"""Interval at which new events are written to the database."""
LEASE_RENEW_SECONDS = 3.0
POLL_SECONDS = 0.5
"""Interval at which a gateway reads new events of a response that runs in another gateway."""
UNWRITTEN_BYTES_MAX = 32 * 1024 * 1024
"""The most bytes of one response's events that wait for the database; beyond it the response is given up."""
RETRY_SECONDS = 1.0
"""Wait after a failed write."""
CLOSE_SECONDS_MAX = 3.0


class BackgroundResponse:
    """A background response under way in this gateway, with its events that are not written yet."""

    def __init__(self, stored: StoredResponse) -> None:
        self.stored = stored
        self.task: asyncio.Task[None] | None = None
        """The task that generates the response."""
        self.changed = asyncio.Event()
        """Set, and replaced by a new Event, when the database has more to read."""
        self.ended = False
        self.write_lock = asyncio.Lock()  # events are written in their order
        self._number = 0
        self._unwritten: list[bytes] = []
        self._size = 0
        self.response: bytes | None = None
        """The response object as JSON, if it has changed since the last write."""

    def append(self, events: bytes, response: bytes | None = None) -> None:
        """Add events to the stream.

        Args:
            events: Whole server-sent events.
            response: The response object as it looks now, if it has changed.
        """
        self._unwritten.append(events)
        self._size += len(events)
        self.response = response if response is not None else self.response
        if self._size > UNWRITTEN_BYTES_MAX and self.task is not None:
            log.error("response %s is given up: its events cannot be written to the database", self.stored.id)
            self.task.cancel()

    def take_unwritten(self) -> tuple[StoredEvents, bytes | None]:
        """Remove and return the events and the response object that have to be written."""
        text = b"".join(self._unwritten)
        # JSON as encoded here has no line breaks, so an empty line always ends an event.
        events = StoredEvents(number=self._number, count=text.count(b"\n\n"), text=text)
        response, self.response = self.response, None
        self._number += events.count
        self._unwritten, self._size = [], 0
        return events, response

    def notify_readers(self) -> None:
        """Wake the readers of the stream, because there is more to read or the response has ended."""
        self.changed.set()
        self.changed = asyncio.Event()


class BackgroundResponses:
    """The background responses of this gateway. At its stop, `close` records unfinished ones as failed."""

    def __init__(self, responses: ResponseStore, store: BackgroundStore) -> None:
        self.store = store
        self._response_store = responses
        self._responses_by_id: dict[str, BackgroundResponse] = {}

    def __len__(self) -> int:
        return len(self._responses_by_id)

    async def begin(self, stored: StoredResponse, task: "asyncio.Task[None]") -> BackgroundResponse:
        """Store a new response, which `task` generates whether or not its client stays.

        Raises:
            Overloaded: Too many background responses are under way.
            ResponsesUnavailable: The database does not answer.
        """
        if len(self._responses_by_id) >= RESPONSES_MAX:
            raise Overloaded(1.0)
        background = BackgroundResponse(stored)
        background.task = task
        self._responses_by_id[stored.id] = background
        try:
            await self._response_store.put(stored, LEASE_SECONDS)
        except (DatabaseDown, DatabaseConflict) as err:
            del self._responses_by_id[stored.id]
            raise ResponsesUnavailable from err
        writing = asyncio.create_task(self._write_events(background))
        task.add_done_callback(lambda _: writing.cancel())
        task.add_done_callback(lambda _: self._forget(background))
        return background

    async def finish(self, background: BackgroundResponse, stored: StoredResponse) -> None:
        """Write the last events and the final state of a response that has ended."""
        background.ended = True
        async with background.write_lock:
            events, _ = background.take_unwritten()
            while True:
                try:
                    await self.store.finish(stored, events)
                    return background.notify_readers()
                except DatabaseDown as err:
                    log.warning("the end of response %s waits for the database: %s", stored.id, err)
                    await asyncio.sleep(RETRY_SECONDS)

    def abort(self, identity: str) -> None:
        """Cancel the task of a response that was cancelled in the database, if this gateway has it under way."""
        if (
            (background := self._responses_by_id.get(identity)) is not None
            and background.task is not None
            and not background.ended
        ):
            background.task.cancel()

    async def follow(self, stored: StoredResponse, after: int) -> AsyncIterator[bytes]:
        """Yield the events after the given number until the response has ended. Raises DatabaseDown."""
        while True:
            background = self._responses_by_id.get(stored.id)
            changed = background.changed if background is not None else None
            now = await self._response_store.get(stored.tenant, stored.id)
            if now is not None and now.running:
                now = await self.store.fail_if_abandoned(now)
            some = await self.store.events(stored.id, after)
            for events in some:
                yield _after(events, after)
                after = events.number + events.count - 1
            if some:
                continue
            if now is None or not now.running:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await (changed.wait() if changed is not None else asyncio.sleep(POLL_SECONDS))

    async def drain(self, seconds: float) -> None:
        """Wait until the responses under way have ended, for at most `seconds`."""
        if tasks := [
            background.task for background in self._responses_by_id.values() if background.task is not None
        ]:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        """Cancel the responses under way, and record them as failed."""
        unfinished = [
            background
            for background in self._responses_by_id.values()
            if background.task is not None and not background.ended
        ]
        for background in unfinished:
            assert background.task is not None
            background.task.cancel()
        with suppress(TimeoutError, DatabaseDown):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await asyncio.gather(
                    *(background.task for background in unfinished if background.task is not None),
                    return_exceptions=True,
                )
                for background in unfinished:
                    await self.store.fail_abandoned(background.stored)

    def _forget(self, background: BackgroundResponse) -> None:
        self._responses_by_id.pop(background.stored.id, None)
        background.notify_readers()

    async def _write_events(self, background: BackgroundResponse) -> None:
        """Write new events and renew the lease until the response ends or was cancelled in the database."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not background.ended:
            async with background.write_lock:
                events, response = background.take_unwritten()
                if events.count or response is not None or loop.time() >= due:
                    due = loop.time() + LEASE_RENEW_SECONDS
                    if not await self._write(background, events, response):
                        self.abort(background.stored.id)
                        return
                    background.notify_readers()
            await asyncio.sleep(WRITE_SECONDS)

    async def _write(
        self, background: BackgroundResponse, events: StoredEvents, response: bytes | None
    ) -> bool:
        """Retry until the database takes the events; return False if the response was cancelled there."""
        while True:
            try:
                return await self.store.add(background.stored.id, events, response)
            except DatabaseDown as err:
                log.warning("events of response %s wait for the database: %s", background.stored.id, err)
                await asyncio.sleep(RETRY_SECONDS)


def _after(events: StoredEvents, number: int) -> bytes:
    """Return the text of the events after the given number."""
    text = events.text
    for _ in range(number + 1 - events.number):
        text = text.partition(b"\n\n")[2]
    return text
