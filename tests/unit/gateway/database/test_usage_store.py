"""Statements of the usage store: portions of any length need only a handful of prepared ones."""

import pytest
from sqlalchemy import bindparam, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import asyncpg

from gateway.database import schema
from gateway.database.database import Database, dialect_insert
from gateway.database.usage_store import (
    _COLUMNS,
    ROWS_AT_ONCE,
    UsageStore,
    _insert_text,
    split_powers_of_two,
)
from gateway.database.usage_tables import usage

TEXTS = ("organisation", "tenant", "key_id", "asked", "model", "worker", "surface", "code")
NUMBERS = ("prompt_tokens", "output_tokens", "cost", "duration_ms", "status")
NOTHING = ("cached_tokens", "ttft_ms", "user", "tags")
ROW = {**dict.fromkeys(TEXTS, "x"), **dict.fromkeys(NUMBERS, 1), **dict.fromkeys(NOTHING)}


def test_parts_are_few_lengths_and_nothing_is_left_out():
    lengths = set()
    for number in range(2 * ROWS_AT_ONCE):
        rows = [{**ROW, "attempt": at} for at in range(number)]
        parts = list(split_powers_of_two(rows))
        assert [row for part in parts for row in part] == rows
        lengths.update(map(len, parts))
    assert lengths == {1, 2, 4, 8, 16, 32, 64, 128, 256}


async def test_portions_of_any_length_are_taken_with_few_statements(tmp_path):
    database = Database("sqlite:///usage.db", tmp_path)
    said = set()
    event.listen(
        database._engine.sync_engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, *rest: said.add(statement),
    )
    await schema.ensure_current(database, upgrades=True)
    said.clear()
    store, taken = UsageStore(database), 0
    for length in range(1, 2 * ROWS_AT_ONCE, 9):
        rows = [
            {**ROW, "request_id": f"r{taken + at}", "attempt": 1, "at_ms": 10**12 + at}
            for at in range(length)
        ]
        assert await store.write(rows, journal="j", position=taken, end=taken + length, now_ms=1) == length
        taken += length
    assert len(said) <= 20
    await database.close()


@pytest.mark.parametrize("dialect", [sqlite.dialect(), asyncpg.dialect()], ids=["sqlite", "postgresql"])
def test_the_text_for_many_rows_is_that_of_sqlalchemy(dialect):
    rows = [
        {name: bindparam(f"{name}_{at}", type_=usage.c[name].type) for name in _COLUMNS} for at in range(4)
    ]
    keys = (usage.c.request_id, usage.c.attempt)
    whole = dialect_insert(dialect.name, usage).values(rows)
    whole = whole.on_conflict_do_nothing(index_elements=keys).returning(*keys)
    assert _insert_text(dialect, 4) == str(whole.compile(dialect=dialect))
