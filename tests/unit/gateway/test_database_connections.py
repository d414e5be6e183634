"""Connections are kept, and as few of them are used as will do."""

import asyncio
from contextlib import AsyncExitStack

from sqlalchemy import event, text

from gateway.database.database import Database


async def test_one_after_another_is_asked_through_one_connection(tmp_path):
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
