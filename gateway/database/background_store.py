"""BackgroundStore: responses that run in the background, and the events of their streams.

    put, running_seconds --add, many times-------> finish --> ended
            |                                      cancel, on any gateway --> ended
            +--its gateway has died: no more adds--> failed as soon as it is read

A gateway that adds to a response learns whether the response is still wanted. Events are kept as long as it is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy import and_, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import schema
from gateway.database.database import Database
from gateway.database.response_store import StoredResponse
from gateway.database.tables import response_events, responses

LEASE_SECONDS = 10.0
READ_AT_ONCE = 50

MISSED = {"code": "server_error", "message": "The service that worked on this response has stopped."}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvents:
    """Consecutive events of one stream."""

    number: int  # of the first event
    count: int
    text: bytes  # as it is sent


class BackgroundStore:
    """Background responses in the database. Every method raises DatabaseDown."""

    def __init__(self, database: Database, wall: Callable[[], float] = time.time) -> None:
        self._database = database
        self._wall = wall

    async def add(self, identity: str, events: StoredEvents, response: bytes | None = None) -> bool:
        """Add events, and the response's new state if it has changed.

        Returns False if the response was cancelled or has ended.
        """
        values: dict[str, Any] = {"running_ms": int((self._wall() + LEASE_SECONDS) * 1000)}
        if response is not None:
            values["response"] = response.decode()
        return await self._change(identity, values, events)

    async def finish(self, stored: StoredResponse, events: StoredEvents) -> bool:
        """End the response; return False if it has ended before."""
        values = {"running_ms": None, "response": stored.response.decode(), "bytes": stored.size}
        return await self._change(stored.id, values, events)

    async def cancel(self, stored: StoredResponse) -> StoredResponse | None:
        """Cancel the response and return its last state; None if it has ended before."""
        return await self._end(stored, {"status": "cancelled"})

    async def fail_if_abandoned(self, stored: StoredResponse) -> StoredResponse:
        """Return the response, or its failed state if the gateway that runs it has died."""
        late = select(responses.c.id).where(
            responses.c.id == stored.id, responses.c.running_ms < int(self._wall() * 1000)
        )
        async with self._database.begin() as connection:
            missed = (await connection.execute(late)).first() is not None
        return (await self.fail_abandoned(stored) if missed else None) or stored

    async def fail_abandoned(self, stored: StoredResponse) -> StoredResponse | None:
        """Fail a response that no gateway works on, and return its last state; None if it has ended before."""
        return await self._end(stored, {"status": "failed", "error": MISSED})

    async def events(self, identity: str, after: int) -> list[StoredEvents]:
        """Return some of the events that come after that number, in order."""
        if not await schema.has_tables(self._database):
            return []
        table = response_events
        asked = select(table).where(table.c.response == identity, table.c.number + table.c.count > after + 1)
        async with self._database.begin() as connection:
            rows = (
                (await connection.execute(asked.order_by(table.c.number).limit(READ_AT_ONCE)))
                .mappings()
                .all()
            )
        return [StoredEvents(number=r["number"], count=r["count"], text=r["text"].encode()) for r in rows]

    async def _end(self, stored: StoredResponse, change: dict[str, Any]) -> StoredResponse | None:
        response = msgspec.json.encode(msgspec.json.decode(stored.response) | change)
        values = {"running_ms": None, "response": response.decode()}
        done = await self._change(stored.id, values, StoredEvents(number=0, count=0, text=b""))
        return replace(stored, response=response, running=False) if done else None

    async def _change(self, identity: str, values: dict[str, Any], events: StoredEvents) -> bool:
        running = and_(responses.c.id == identity, responses.c.running_ms.is_not(None))
        async with self._database.begin() as connection:
            if not (await connection.execute(update(responses).where(running).values(values))).rowcount:
                return False
            await _write(connection, identity, events)
        return True


async def _write(connection: AsyncConnection, identity: str, events: StoredEvents) -> None:
    if events.count:
        row = {"response": identity, "number": events.number, "count": events.count}
        await connection.execute(insert(response_events).values(**row, text=events.text.decode()))
