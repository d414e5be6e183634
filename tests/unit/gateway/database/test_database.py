"""The connection pool of the database: connections are kept, and as few as possible are used."""

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import event, text

from gateway.database.database import Database

CONNECTION_THREAD = "_connection_worker_thread"
"""In the name of the thread of an open SQLite connection."""


class HeldStatement:
    """A statement of SQLite that runs until it is let go."""

    def __init__(self):
        self.runs, self._let_go = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    async def execute(self, connection):
        raw = (await connection.get_raw_connection()).driver_connection
        await raw.create_function("held", 0, self._hold)
        await connection.execute(text("SELECT held()"))

    def let_go(self):
        self._let_go.set()

    def _hold(self):
        self._loop.call_soon_threadsafe(self.runs.set)
        self._let_go.wait(60)


async def test_queries_one_after_another_use_one_connection(tmp_path):
    database = Database("sqlite:///some.db", tmp_path)
    asked = []
    event.listen(
        database._engine.sync_engine,
        "checkout",
        lambda connection, *_: asked.append(connection),
    )

    async def ask():
        async with database.begin() as connection:
            await connection.execute(text("SELECT 1"))

    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(database.begin())
        assert len({id(connection) for connection in asked}) == 3
    asked.clear()
    for _ in range(6):
        await ask()
    assert len({id(connection) for connection in asked}) == 1
    await asyncio.gather(*(ask() for _ in range(6)))
    await database.close()


async def test_a_task_cancelled_in_a_transaction_leaves_the_file_to_others(tmp_path):
    """SQLite keeps a closed connection with its transaction for as long as a cursor of it is open."""
    database = Database("sqlite:///locked.db", tmp_path)
    async with database.begin() as connection:
        await connection.execute(text("CREATE TABLE counts (number INTEGER)"))
        await connection.execute(text("INSERT INTO counts VALUES (1), (2), (3)"))
    held, statement = [], HeldStatement()

    async def write():
        async with database.begin() as connection:
            await connection.execute(text("UPDATE counts SET number = number + 1"))

    async def interrupted():
        async with database.begin() as connection:
            await connection.execute(text("UPDATE counts SET number = number + 1"))
            held.append(await connection.stream(text("SELECT number FROM counts")))
            await anext(held[0])
            await statement.execute(connection)

    task = asyncio.create_task(interrupted())
    await statement.runs.wait()
    task.cancel()
    statement.let_go()
    await asyncio.wait([task])
    assert task.cancelled()
    await write()
    async with database.begin() as connection:
        assert (await connection.execute(text("SELECT max(number) FROM counts"))).scalar() == 4
    await database.close()


async def test_a_transaction_that_reads_before_it_writes_waits_for_those_that_write_meanwhile(tmp_path):
    """SQLite refuses writes of a transaction whose reads are outdated: it reports a locked file at once."""
    database = Database("sqlite:///waits.db", tmp_path)
    async with database.begin() as connection:
        await connection.execute(text("CREATE TABLE counts (number INTEGER)"))
        await connection.execute(text("INSERT INTO counts VALUES (0)"))

    async def raised():
        async with database.begin(writes=True) as connection:
            number = (await connection.execute(text("SELECT number FROM counts"))).scalar()
            await connection.execute(text("UPDATE counts SET number = :number"), {"number": number + 1})

    await asyncio.gather(*(raised() for _ in range(24)))
    async with database.begin() as connection:
        assert (await connection.execute(text("SELECT number FROM counts"))).scalar() == 24
    await database.close()


async def test_a_task_cancelled_again_while_its_connection_closes_leaves_no_other_waiting(tmp_path):
    """A closing connection that was told to stop twice waited for a thread that had ended; so did the end of the
    process, which cancels and waits for whatever still runs."""
    database = Database("sqlite:///twice.db", tmp_path)
    others, statement = asyncio.all_tasks(), HeldStatement()

    async def interrupted():
        async with database.begin() as connection:
            await statement.execute(connection)

    task = asyncio.create_task(interrupted())
    await statement.runs.wait()
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    statement.let_go()
    await asyncio.wait([task])
    left = asyncio.all_tasks() - others
    _, waiting = await asyncio.wait(left, timeout=20) if left else (set(), set())
    assert not waiting
    async with database.begin() as connection:
        await connection.execute(text("SELECT 1"))
    await database.close()


@pytest.mark.parametrize("cancels", [1, 2], ids=["once", "twice"])
async def test_a_closed_database_leaves_no_connection_of_a_task_that_was_cancelled_at_any_moment(
    tmp_path, cancels
):
    """A connection that came back to a pool already disposed of stayed open until the garbage collector ran."""
    database = Database("sqlite:///moments.db", tmp_path)
    async with database.begin() as connection:
        await connection.execute(text("CREATE TABLE counts (number INTEGER)"))
    await database.close()
    others = asyncio.all_tasks()

    async def write(database):
        async with database.begin() as connection:
            await connection.execute(text("INSERT INTO counts VALUES (1)"))

    for moment in range(60):
        database = Database("sqlite:///moments.db", tmp_path)
        task = asyncio.create_task(write(database))
        for _ in range(moment):
            await asyncio.sleep(0.0002)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        await database.close()
        assert asyncio.all_tasks() == others
        assert not [thread.name for thread in threading.enumerate() if CONNECTION_THREAD in thread.name]
