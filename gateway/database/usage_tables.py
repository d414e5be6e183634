"""The tables of the usage ledger.

    usage            one row for each request
    usage_hours      sums of them, by hour       both are updated with every new row, in its transaction, so that
    usage_days       the same, by day            they are the sums of all rows that ever came
    usage_journals   up to which position each file of a gateway's journal is stored
    outbox           events for webhooks, and the outcome of each

Rows and hours are deleted when they are old, days stay. Times are milliseconds since 1970; a bucket is named by its
beginning in UTC. Costs are millionths of the currency.
"""

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, String, Table

from gateway.database.tables import metadata

usage = Table(
    "usage",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False, index=True),
    Column("organisation", String(64), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("key_id", String(64), nullable=False),
    Column("asked", String(200), nullable=False),
    Column("model", String(200), nullable=False),
    Column("worker", String(64)),
    Column("surface", String(64), nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("ttft_ms", BigInteger),
    Column("duration_ms", BigInteger, nullable=False),
    Column("status", Integer, nullable=False),
    Column("code", String(64), nullable=False),
    Column("user", String(256)),
    Column("tags", JSON(none_as_null=True)),
    Index("ix_usage_tenant_at_ms", "tenant", "at_ms"),
)

MEASURES = (
    "requests",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "cost",
    "duration_ms",
    "ttft_ms",
    "ttft_count",
)
"""What is summed.

`failed`: neither answered nor abandoned by the client. `ttft_count`: requests that have a TTFT.
"""

DIMENSIONS = ("organisation", "tenant", "key_id", "model")
"""The columns by which sums are kept apart, besides time."""


def _sums(name: str, *indexes: Index) -> Table:
    return Table(
        name,
        metadata,
        Column("start_ms", BigInteger, primary_key=True, autoincrement=False),
        Column("tenant", String(64), primary_key=True),
        Column("model", String(200), primary_key=True),
        Column("key_id", String(64), primary_key=True),
        Column("organisation", String(64), primary_key=True),
        *(Column(measure, BigInteger, nullable=False) for measure in MEASURES),
        *indexes,
    )


OWNERS = ("organisation", "tenant", "key_id")

usage_hours = _sums(
    "usage_hours", *(Index(f"ix_usage_hours_{owner}_start_ms", owner, "start_ms") for owner in OWNERS)
)
"""Sums by hour, with an index for each kind of account: the first request of every account reads its usage.
"""
usage_days = _sums("usage_days")

usage_journals = Table(
    "usage_journals",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("hook", String(64), primary_key=True),
    Column("type", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("data", JSON, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_ms", BigInteger, index=True),
    Column("ended_ms", BigInteger, index=True),
    Column("said", String(200)),
)
"""Events on their way to webhooks.

`due_ms`: when to try next, NULL where there is nothing left to try. `said`: the outcome of the last attempt.
"""
