"""The tables of tenants and stored responses.

    changes        one row, one number: it rises by one with every transaction that changes what follows
    organisations  plans  tenants  keys      `changed`: that number at their last change
    compatibility  one row: the oldest version of the tables whose code serves on them as they are

A gateway that has read everything up to a number queries the rows with a higher one. The number's row is locked
from the beginning of a transaction to its end, so that numbers become visible in order. Rows that a gateway may
have in memory are never deleted: keys are revoked, tenants disabled. Lists are JSON, and NULL if they have their
default. Times are milliseconds since 1970.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

REVISION = "0013"
"""The newest migration."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

changes = Table(
    "changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)

compatibility = Table(
    "compatibility",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("oldest_code", String(32), nullable=False),
)

organisations = Table(
    "organisations",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("limits", Text),
    Column("concurrency", BigInteger),
    Column("disabled", Boolean, nullable=False),
    Column("changed", BigInteger, nullable=False, index=True),
)

plans = Table(
    "plans",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("limits", Text),
    Column("concurrency", BigInteger),
    Column("weight", Float),
    Column("classes", Text),
    Column("models", Text),
    Column("context_length_max", BigInteger),
    Column("context_lengths", Text),
    Column("cache_blocks_max", BigInteger),
    Column("without_redis", String(16)),
    Column("overflow", String(16)),
    Column("of_file", Boolean),
    Column("changed", BigInteger, nullable=False, index=True),
)
"""Plans.

`of_file`: the plan is in the settings file, and its row has only the name, for tenants to refer to. A gateway with
a settings file without it allows these tenants nothing.
"""

tenants = Table(
    "tenants",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("organisation", ForeignKey("organisations.id"), index=True),
    Column("plan", ForeignKey("plans.name"), index=True),
    Column("limits", Text),
    Column("concurrency", BigInteger),
    Column("context_length_max", BigInteger),
    Column("context_lengths", Text),
    Column("cache_blocks_max", BigInteger),
    Column("without_redis", String(16)),
    Column("overflow", String(16)),
    Column("isolation", Text),
    Column("models", Text),
    Column("addresses", Text),
    Column("disabled", Boolean, nullable=False),
    Column("changed", BigInteger, nullable=False, index=True),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", ForeignKey("tenants.id"), nullable=False, index=True),
    Column("hash", String(80), nullable=False, unique=True),
    Column("name", String(200)),
    Column("family", String(64)),
    Column("scopes", Text),
    Column("models", Text),
    Column("addresses", Text),
    Column("limits", Text),
    Column("concurrency", BigInteger),
    Column("service_class", String(16)),
    Column("disabled", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
    Column("changed", BigInteger, nullable=False, index=True),
)

responses = Table(
    "responses",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False, index=True),
    Column("bytes", BigInteger, nullable=False),
    Column("response", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("own_from", Integer, nullable=False),
    Column("running_ms", BigInteger),
    Index("ix_responses_tenant_created_ms", "tenant", "created_ms"),
)
"""Stored responses.

`context`: the items of the conversation up to this response's output; its own input begins at `own_from`.
`running_ms`: until when its gateway is considered alive; NULL once the response has ended.
"""

response_events = Table(
    "response_events",
    metadata,
    Column("response", String(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("count", Integer, nullable=False),
    Column("text", Text, nullable=False),
)
"""The stream of a background response: `count` events from `number` on, as they are sent."""
