"""The audit log: who changed what, written in the transaction that changes it.

    hash 1 = HMAC(key, hash 0, row 1)     hash 2 = HMAC(key, hash 1, row 2)     ...     hash 0 = 64 zeros

Each row seals all rows before it. Whoever changes, adds or takes out a row in the middle breaks the chain there,
and without the deployment's secret cannot mend it. What is cut off at the end leaves a whole chain: whoever noted
the last number and hash elsewhere can hold the log against them.
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
"""Never in the log: what opens something, and what says nothing."""

SEALED = ("number", "at_ms", "who", "action", "kind", "subject", "before", "after")

_encode = msgspec.json.Encoder(order="sorted").encode


def chain_key(deployment_secret: bytes) -> bytes:
    """What the chain is made with."""
    return hmac.digest(deployment_secret, b"radixgate audit chain", hashlib.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One row. `before`, `after`: columns of what was changed, as JSON; None where there was nothing."""

    number: int
    at_ms: int
    who: str
    action: str
    kind: str
    subject: str
    before: str | None
    after: str | None
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerification:
    """`broken`: the number of the first row that does not follow from those before it; None if all do.

    `number`, `hash`: of the last one.
    """

    broken: int | None
    number: int
    hash: str


class AuditLog:
    """`key`: see chain_key. Every method raises DatabaseDown."""

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
        """The newest first; `before`: only those with a smaller number."""
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
        """The whole chain, page by page."""
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
    """One more row. The caller has locked `changes`: whoever writes here is alone."""
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
    """The hash of a row that follows one with hash `last`."""
    text = _encode([last, *(row[name] for name in SEALED)])
    return hmac.digest(key, text, hashlib.sha256).hex()


def _shown(columns: Mapping[str, Any] | None) -> str | None:
    if columns is None:
        return None
    kept = {
        name: value for name, value in columns.items() if value is not None and name not in SECRET_COLUMNS
    }
    return _encode(kept).decode()
