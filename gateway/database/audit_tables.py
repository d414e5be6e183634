"""The tables of the audit log, and of the operators of the admin API.

audit        one row for each change, numbered without a gap; the database itself refuses to change or delete one
operators    tokens of the admin API; `hash` is made as for keys
"""

from sqlalchemy import BigInteger, Column, String, Table, Text

from gateway.database.tables import metadata

audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("who", String(200), nullable=False),
    Column("action", String(64), nullable=False),
    Column("kind", String(64), nullable=False, index=True),
    Column("subject", String(200), nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("hash", String(64), nullable=False),
)

operators = Table(
    "operators",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("hash", String(80), nullable=False, unique=True),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
    Column("changed", BigInteger, nullable=False),
)
