"""Sums of the ledger are the sums of its rows: whatever order portions come in, and however often each does."""

import asyncio
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import delete, text

from gateway.database.database import Database
from gateway.database.usage_query import UsageQuery, UsageReader
from gateway.database.usage_store import DAY_MS, HOUR_MS, JournalMoved, UsageStore, prepared_rows
from gateway.database.usage_tables import MEASURES, usage, usage_days, usage_hours, usage_journals

ROW = {"organisation": "org", "asked": "m", "worker": "w", "surface": "chat", "user": None, "tags": None}

rows = st.fixed_dictionaries(
    {
        "at_ms": st.integers(0, 3 * DAY_MS),
        "tenant": st.sampled_from(["a", "b"]),
        "key_id": st.sampled_from(["", "k"]),
        "model": st.sampled_from(["", "m", "n"]),
        "prompt_tokens": st.integers(0, 2**40),
        "cached_tokens": st.none() | st.integers(0, 2**40),
        "output_tokens": st.integers(0, 2**40),
        "cost": st.integers(0, 2**53),
        "ttft_ms": st.none() | st.integers(0, 10**6),
        "duration_ms": st.integers(0, 10**6),
        "status": st.sampled_from([200, 429, 499, 500]),
        "code": st.just("ok"),
    }
)


@st.composite
def shipments(draw):
    """Journals of rows, some of which stand in several; and the portions that are taken, again and again."""
    made = draw(st.lists(rows, min_size=1, max_size=8))
    known = [{**ROW, **row, "request_id": f"r{at}", "attempt": 1} for at, row in enumerate(made)]
    which = st.lists(st.integers(0, len(known) - 1), max_size=6)
    journals = draw(st.lists(which, min_size=1, max_size=3))
    steps = st.tuples(st.integers(0, len(journals) - 1), st.integers(0, 6), st.integers(1, 6), st.booleans())
    return known, journals, draw(st.lists(steps, max_size=15))


class Gone(Exception):
    pass


async def play(database, known, journals, steps):
    """Takes portions as said; one that is `cut` fails after all was done and before it was committed."""
    store = UsageStore(database)
    for at, position, length, cut in steps:
        end = min(position + length, len(journals[at]))
        taken = [known[number] for number in journals[at][position:end]]
        say = {"journal": f"j{at}", "position": position, "end": end, "now_ms": 1}
        try:
            if cut:
                with pytest.raises(Gone):
                    async with database.begin() as connection:
                        await store._move_on(connection, say["journal"], position, end, 1)
                        await store._add(connection, prepared_rows(taken))
                        raise Gone
            else:
                await store.write(taken, **say)
        except JournalMoved:
            continue  # It is further already, or not so far.
    # In the end everything is taken, from where it stands.
    for at, journal in enumerate(journals):
        position = await store.position(f"j{at}")
        taken = [known[number] for number in journal[position:]]
        await store.write(taken, journal=f"j{at}", position=position, end=len(journal), now_ms=1)


def model(known, journals, length):
    sums: dict = {}
    for number in {number for journal in journals for number in journal}:
        row = known[number]
        key = (row["at_ms"] // length * length, row["tenant"], row["key_id"], row["model"])
        sums.setdefault(key, Counter()).update(
            requests=1,
            failed=int(row["status"] in (429, 500)),
            ttft_count=int(row["ttft_ms"] is not None),
            **{name: row[name] or 0 for name in MEASURES if name not in ("requests", "failed", "ttft_count")},
        )
    return {key: {name: by[name] for name in MEASURES} for key, by in sums.items()}


@pytest.fixture
def loop_and_database(tables_url):
    """One loop and one database for all examples: making either takes longer than an example."""
    loop = asyncio.new_event_loop()
    database = Database(tables_url, Path())
    yield loop, database
    loop.run_until_complete(database.close())
    loop.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shipments())
def test_sums_are_the_sums_of_rows_that_are_taken_once(loop_and_database, shipment):
    loop, database = loop_and_database
    known, journals, steps = shipment

    async def example():
        async with database.begin() as connection:
            for table in (usage, usage_hours, usage_days, usage_journals):
                await connection.execute(delete(table))
        await play(database, known, journals, steps)
        reader = UsageReader(database)
        for unit, length in (("hour", HOUR_MS), ("day", DAY_MS)):
            expected = model(known, journals, length)
            by = (unit, "tenant", "key", "model")
            for query in (UsageQuery(by=by), UsageQuery(by=(*by, "code"))):
                found = await reader.sums(query)
                assert query.source == ("rows" if "code" in query.by else f"{unit}s")
                assert {tuple(g[name] for name in by): {m: g[m] for m in MEASURES} for g in found} == expected

    loop.run_until_complete(example())


async def test_gateways_that_add_to_the_same_sums_at_once_lose_nothing(tables_url):
    database = Database(tables_url, Path())
    store = UsageStore(database)
    row = {**ROW, "at_ms": 1, "tenant": "a", "key_id": "k", "model": "m", "code": "ok", "status": 200}
    row |= {
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "output_tokens": 1,
        "cost": 1,
        "ttft_ms": 1,
        "duration_ms": 1,
    }
    portions = [
        [
            {**row, "request_id": f"r{at}-{number}", "attempt": 1, "model": f"m{number % 3}"}
            for number in range(20)
        ]
        for at in range(6)
    ]
    await asyncio.gather(
        *(
            store.write(portion, journal=f"j{at}", position=0, end=1, now_ms=1)
            for at, portion in enumerate(portions)
        )
    )
    (found,) = await UsageReader(database).sums(UsageQuery())
    assert (found["requests"], found["cost"]) == (120, 120)
    async with database.begin() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM usage_hours"))).scalar() == 3
    await database.close()


async def test_what_is_old_goes_and_its_sums_stay(tables_url):
    database = Database(tables_url, Path())
    store, reader = UsageStore(database), UsageReader(database)
    row = {**ROW, "attempt": 1, "tenant": "a", "key_id": "k", "model": "m", "code": "ok", "status": 200}
    row |= {
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "output_tokens": 1,
        "cost": 1,
        "ttft_ms": 1,
        "duration_ms": 1,
    }
    taken = [{**row, "request_id": f"r{day}", "at_ms": day * DAY_MS} for day in range(4)]
    await store.write(taken, journal="j", position=0, end=1, now_ms=1)
    bounds = {"rows_before_ms": 2 * DAY_MS, "hours_before_ms": DAY_MS, "journals_before_ms": 1}
    assert await store.prune(**bounds) == 3
    assert await store.prune(**bounds) == 0
    counts = [(await reader.sums(UsageQuery(by=by))) for by in (("code",), ("hour",), ("day",))]
    assert [sum(group["requests"] for group in groups) for groups in counts] == [2, 3, 4]
    with pytest.raises(JournalMoved):
        # Shipped again, long after its rows have gone: the journal's position still knows.
        await store.write(taken, journal="j", position=5, end=6, now_ms=1)
    await database.close()
