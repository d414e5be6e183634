"""The audit log: records which actor changed what, in the transaction of the change.

    hash 1 = HMAC(key, hash 0, row 1)     hash 2 = HMAC(key, hash 1, row 2)     ...     hash 0 = 64 zeros

Each row seals all rows before it. Changing, adding or removing a row in the middle breaks the chain, and without
the deployment's secret the chain cannot be repaired. Removing rows at the end leaves a valid chain; a copy of the
last number and hash, kept elsewhere, reveals that.
"""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database.audit_tables import audit
from gateway.database.database import Database

FIRST_HASH = "0" * 64
PAGE = 1000
SECRET_COLUMNS = ("hash", "changed")
"""Columns that are never logged: credentials, and the number of the last change."""

SEALED = ("number", "at_ms", "who", "action", "kind", "subject", "before", "after")
"""The columns that the hash of a row covers."""

_encode = msgspec.json.Encoder(order="sorted").encode


def chain_key(deployment_secret: bytes) -> bytes:
    """Return the key of the chain."""
    return hmac.digest(deployment_secret, b"radixgate audit chain", hashlib.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One row of the audit log."""

    number: int  # from 1, without a gap
    at_ms: int
    who: str  # the actor
    action: str
    kind: str
    subject: str
    before: str | None  # columns of the changed row as JSON; None where there was no row
    after: str | None  # the same, after the change
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerification:
    """The result of verifying the chain."""

    broken: int | None  # number of the first row that does not follow from the rows before it; None if all do
    number: int  # of the last verified row
    hash: str  # of the last verified row


class AuditLog:
    """Reads and verifies the audit log; `key` is that of chain_key. Every method raises DatabaseDown."""

    def __init__(self, database: Database, key: bytes) -> None:
        self._database = database
        self._key = key

    async def page(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        kind: str | None = None,
        subject: str | None = None,
    ) -> list[AuditEntry]:
        """Return rows, the newest first; `before`: only rows with a smaller number."""
        asked = select(audit).order_by(audit.c.number.desc()).limit(limit)
        if before is not None:
            asked = asked.where(audit.c.number < before)
        if kind is not None:
            asked = asked.where(audit.c.kind == kind)
        if subject is not None:
            asked = asked.where(audit.c.subject == subject)
        if not self._database.exists:
            return []
        async with self._database.begin() as connection:
            return [AuditEntry(**row) for row in (await connection.execute(asked)).mappings()]

    async def verify(self) -> AuditVerification:
        """Verify the whole chain, page by page."""
        number, last = 0, FIRST_HASH
        while self._database.exists:
            asked = select(audit).where(audit.c.number > number).order_by(audit.c.number).limit(PAGE)
            async with self._database.begin() as connection:
                rows = [dict(row) for row in (await connection.execute(asked)).mappings()]
            for row in rows:
                if row["number"] != number + 1 or row["hash"] != seal_hash(self._key, last, row):
                    return AuditVerification(broken=number + 1, number=number, hash=last)
                number, last = row["number"], row["hash"]
            if len(rows) < PAGE:
                break
        return AuditVerification(broken=None, number=number, hash=last)


async def append_entry(
    connection: AsyncConnection,
    key: bytes,
    *,
    who: str,
    action: str,
    kind: str,
    subject: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """Append a row; the caller has locked the table `changes`, so that no other transaction appends."""
    asked = select(audit.c.number, audit.c.hash).order_by(audit.c.number.desc()).limit(1)
    number, last = (await connection.execute(asked)).first() or (0, FIRST_HASH)
    row = {
        "number": number + 1,
        "at_ms": round(time.time() * 1000),
        "who": who,
        "action": action,
        "kind": str(kind),
        "subject": subject,
        "before": _shown(before),
        "after": _shown(after),
    }
    await connection.execute(insert(audit).values(**row, hash=seal_hash(key, last, row)))


def seal_hash(key: bytes, last: str, row: Mapping[str, Any]) -> str:
    """Return the hash of a row that follows one with hash `last`."""
    text = _encode([last, *(row[name] for name in SEALED)])
    return hmac.digest(key, text, hashlib.sha256).hex()


def _shown(columns: Mapping[str, Any] | None) -> str | None:
    if columns is None:
        return None
    kept = {
        name: value for name, value in columns.items() if value is not None and name not in SECRET_COLUMNS
    }
    return _encode(kept).decode()
