"""Events for webhooks on their way into the database."""

import asyncio

from sqlalchemy import insert

from gateway.database import schema
from gateway.database.database import Database
from gateway.database.usage_tables import usage_journals
from gateway.database.webhook_outbox import Outbox


async def test_events_are_kept_while_others_write_all_the_time(tmp_path):
    database = Database("sqlite:///outbox.db", tmp_path)
    await schema.ensure_tables(database)
    outbox = Outbox(database)

    async def events():
        for number in range(20):
            row = {"id": f"e-{number}", "hook": "h", "type": "t", "at_ms": 1, "data": {}, "attempts": 0}
            await outbox.put([{**row, "due_ms": 1}])

    async def others(name):
        for number in range(20):
            async with database.begin() as connection:
                row = {"name": f"{name}-{number}", "position": 0, "changed_ms": 1}
                await connection.execute(insert(usage_journals).values(row))

    await asyncio.gather(events(), others("a"), others("b"))
    assert len(await outbox.claim(["h"], now_ms=2, until_ms=3, limit=100)) == 20
    await database.close()
