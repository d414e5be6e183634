"""The requests in progress: their names, and the wait for their end when the worker drains."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from workers.engine_server.errors import ApiError


class LiveRequests:
    """The requests in progress, by the names that clients give them.

    A client may send a name twice, for example when it retries before the worker noticed the lost connection. So
    in the engine each request has a number of the worker's own, and a name covers all of its numbers.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        """Whether new requests are refused because the worker shuts down."""

    def __len__(self) -> int:
        return len(self._names)

    @contextmanager
    def enter(self, rid: str) -> Iterator[str]:
        """Yield the engine's id of a request, which is in progress inside this context; refuse while draining."""
        if self.draining:
            raise ApiError(503, "The worker is shutting down.", code="shutting_down")
        self._count += 1
        engine_id = str(self._count)
        self._names[engine_id] = rid
        self._idle.clear()
        try:
            yield engine_id
        finally:
            del self._names[engine_id]
            if not self._names:
                self._idle.set()

    def engine_ids(self, rid: str | None) -> list[str]:
        """Return the engine's ids of the requests named `rid`, or of all requests when it is None."""
        return [engine_id for engine_id, name in self._names.items() if rid is None or name == rid]

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait at most `seconds` until those in progress have ended."""
        self.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
