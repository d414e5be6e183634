"""The audit log: in the transaction of the change, without secrets, chained, and kept. SQLite and PostgreSQL."""

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.database.audit_log import AuditLog
from gateway.database.database import Database, DatabaseConflict, DatabaseDown
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import PlanSettings, TenantSettings
from gateway.tenants.key_lifecycle import KeyLifecycle
from gateway.tenants.keys import pepper

CHAIN = b"a key of the chain"


@pytest.fixture
async def database(tables_url):
    opened = Database(tables_url, Path())
    yield opened
    await opened.close()


@pytest.fixture
def store(database):
    return TenantStore(database, CHAIN, "cli:ada")


@pytest.fixture
def log(database):
    return AuditLog(database, CHAIN)


async def put_plan(store, name, **more):
    async with store.change() as change:
        await change.put_plan(PlanSettings(name=name, **more))


async def test_a_change_has_its_author_what_was_done_and_the_value_before(store, log):
    await put_plan(store, "free", concurrency=2)
    await put_plan(store.acting("operator:bob"), "free", concurrency=3)
    second, first = await log.page()
    assert (first.number, first.who, first.action, first.kind, first.subject) == (
        *(1, "cli:ada", "create", "plans", "free"),
    )
    assert first.before is None
    assert json.loads(first.after).items() >= {"concurrency": 2, "name": "free"}.items()
    assert (second.who, second.action, second.before) == ("operator:bob", "change", first.after)


async def test_the_life_of_a_key_is_logged_without_its_secret(store, log):
    async with store.change() as change:
        await change.put_tenant(TenantSettings(id="acme"))
    life = KeyLifecycle(store, pepper(b"secret"))
    made = await life.create("acme")
    successor = await life.rotate(made.id, 60.0)
    await life.revoke([made.id])
    told = await log.page(kind="keys")
    assert [(entry.action, entry.subject) for entry in reversed(told)] == [
        ("create", made.id),
        ("rotate", made.id),
        ("create", successor.id),
        ("revoke", made.id),
    ]
    said = "".join(f"{entry.before}{entry.after}" for entry in told)
    assert made.hash not in said
    assert successor.text not in said


async def test_a_change_that_fails_leaves_no_word_of_it(store, log):
    with pytest.raises(DatabaseConflict):
        async with store.change() as change:
            await change.put_plan(PlanSettings(name="p"))
            await change.put_tenant(TenantSettings(id="acme", plan="no such plan"))
    assert await log.page() == []


@pytest.mark.parametrize("statement", ["UPDATE audit SET who = 'eve'", "DELETE FROM audit"])
async def test_the_database_refuses_to_change_the_log(store, database, statement):
    await put_plan(store, "p")
    with pytest.raises((DatabaseDown, DatabaseConflict), match="only appended to"):
        async with database.begin() as connection:
            await connection.execute(text(statement))


async def test_a_row_changed_past_the_triggers_breaks_the_chain(store, log, database):
    for name in ("a", "b", "c"):
        await put_plan(store, name)
    whole = await log.verify()
    assert (whole.broken, whole.number) == (None, 3)
    assert whole.hash == (await log.page(limit=1))[0].hash
    assert (await AuditLog(database, b"another key").verify()).broken == 1
    sqlite = database.file is not None
    async with database.begin() as connection:
        for verb in ("update", "delete") if sqlite else ("is_kept",):
            trigger = f"audit_no_{verb}" if sqlite else "audit_is_kept ON audit"
            await connection.execute(text(f"DROP TRIGGER {trigger}"))
        await connection.execute(text("UPDATE audit SET who = 'eve' WHERE number = 2"))
    assert (await log.verify()).broken == 2
    async with database.begin() as connection:
        await connection.execute(text("DELETE FROM audit WHERE number = 2"))
    assert (await log.verify()).broken == 2


async def test_the_log_is_read_page_by_page(store, log):
    for name in ("a", "b", "c"):
        await put_plan(store, name)
    first = await log.page(limit=2)
    assert [entry.subject for entry in first] == ["c", "b"]
    assert [entry.subject for entry in await log.page(limit=2, before=first[-1].number)] == ["a"]
    assert [entry.subject for entry in await log.page(subject="b")] == ["b"]
