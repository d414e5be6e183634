"""ConversationStore: conversations of the Conversations API, each visible to its own tenant.

There are bounds on the time that a conversation is kept after its last change, on its size, and on the number and
the bytes of a tenant's conversations. The least recently changed ones are deleted first.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, and_, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database import schema
from gateway.database.conversation_tables import ITEM_ID_LENGTH_MAX, conversation_items, conversations
from gateway.database.database import Database, DatabaseConflict, DatabaseDown
from gateway.database.pagination import CursorNotFound, PageRequest
from gateway.database.response_store import BYTES_MAX, SWEEP_SECONDS, TENANT_BYTES_MAX
from gateway.database.storable_text import is_storable

log = logging.getLogger(__name__)

ITEMS_MAX = 10_000
"""The most items that one conversation ever gets, including deleted ones."""

Item = dict[str, Any]


class ConversationNotFound(Exception):
    """The conversation does not exist, has expired, or belongs to another tenant."""


class ConversationFull(Exception):
    """The conversation would have more bytes or items than one may have."""


class ItemInvalid(Exception):
    """The id of an item cannot be stored, or is that of another item of the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """One conversation without its items."""

    id: str
    tenant: str
    created: float  # Unix time
    metadata: dict[str, str]


class ConversationStore:
    """All conversations, each kept for `kept_seconds` after its last change. Every method raises DatabaseDown."""

    def __init__(
        self,
        database: Database,
        *,
        kept_seconds: float,
        tenant_conversations_max: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._kept_seconds = kept_seconds
        self._tenant_conversations_max = tenant_conversations_max
        self._wall = wall

    @property
    def enabled(self) -> bool:
        """Whether conversations are stored at all."""
        return self._kept_seconds > 0

    async def create(self, conversation: StoredConversation, items: Sequence[Item]) -> None:
        """Store a new conversation with its first items. Raises ConversationFull, ItemInvalid."""
        now = self._now_ms()
        row = {
            "id": conversation.id,
            "tenant": conversation.tenant,
            "created_ms": int(conversation.created * 1000),
            "changed_ms": now,
            "expires_ms": now + int(self._kept_seconds * 1000),
            "bytes": 0,
            "item_count": 0,
            "metadata": msgspec.json.encode(conversation.metadata).decode(),
        }
        await schema.ensure_tables(self._database)
        async with self._adding(items) as connection:
            await connection.execute(insert(conversations).values(row))
            await self._add(connection, conversation.tenant, conversation.id, items, beyond=False)

    async def get(self, tenant: str, identity: str) -> StoredConversation | None:
        """Return a conversation; None if it does not exist, has expired, or belongs to another tenant."""
        row = await self._first(select(conversations), tenant, identity)
        if row is None:
            return None
        return StoredConversation(
            id=row["id"],
            tenant=row["tenant"],
            created=row["created_ms"] / 1000,
            metadata=msgspec.json.decode(row["metadata"]),
        )

    async def set_metadata(self, tenant: str, identity: str, metadata: dict[str, str]) -> None:
        """Replace the metadata. Raises ConversationNotFound."""
        written = msgspec.json.encode(metadata).decode()
        async with self._reading(tenant, identity) as connection:
            change = update(conversations).where(conversations.c.id == identity)
            await connection.execute(change.values(metadata=written))

    async def append(
        self, tenant: str, identity: str, items: Sequence[Item], *, beyond: bool = False
    ) -> None:
        """Add items at the end; those of several calls never mix.

        Args:
            tenant: The owner of the conversation.
            identity: The conversation.
            items: The items, each with an id.
            beyond: Whether these items may exceed the bounds, as an answer that was already generated does.

        Raises:
            ConversationNotFound: There is no such conversation.
            ConversationFull: The conversation would become too large.
            ItemInvalid: An item's id cannot be used.
        """
        async with self._adding(items) as connection:
            await self._add(connection, tenant, identity, items, beyond=beyond)

    async def items(self, tenant: str, identity: str) -> list[Item]:
        """Return all items in their order. Raises ConversationNotFound."""
        ordered = _items_of(identity).order_by(conversation_items.c.number)
        async with self._reading(tenant, identity) as connection:
            return [msgspec.json.decode(text) for text in (await connection.execute(ordered)).scalars()]

    async def page(self, tenant: str, identity: str, page: PageRequest) -> tuple[list[Item], bool]:
        """Return some of the items, and whether there are more. Raises ConversationNotFound, CursorNotFound."""
        number = conversation_items.c.number
        async with self._reading(tenant, identity) as connection:
            query = _items_of(identity).order_by(number.desc() if page.newest_first else number)
            if page.after is not None:
                at = await _number(connection, identity, page.after)
                query = query.where(number < at if page.newest_first else number > at)
            texts = (await connection.execute(query.limit(page.limit + 1))).scalars().all()
        return [msgspec.json.decode(text) for text in texts[: page.limit]], len(texts) > page.limit

    async def item(self, tenant: str, identity: str, item: str) -> Item | None:
        """Return one item; None if there is none of this id. Raises ConversationNotFound."""
        if not is_storable(item):
            return None
        async with self._reading(tenant, identity) as connection:
            asked = _items_of(identity).where(conversation_items.c.id == item)
            text = (await connection.execute(asked)).scalar()
        found: Item | None = msgspec.json.decode(text) if text is not None else None
        return found

    async def delete_item(self, tenant: str, identity: str, item: str) -> bool:
        """Delete one item; return False if there was none of this id. Raises ConversationNotFound."""
        found = await self.item(tenant, identity, item)
        if found is None:
            return False
        this = and_(conversation_items.c.conversation == identity, conversation_items.c.id == item)
        shorter = update(conversations).where(conversations.c.id == identity)
        async with self._database.begin(writes=True) as connection:
            deleted = (await connection.execute(delete(conversation_items).where(this))).rowcount > 0
            if deleted:
                size = len(msgspec.json.encode(found))
                await connection.execute(shorter.values(bytes=conversations.c.bytes - size))
        return deleted

    async def delete(self, tenant: str, identity: str) -> bool:
        """Delete a conversation with its items; return False if it did not exist."""
        if not is_storable(identity) or not await schema.has_tables(self._database):
            return False
        async with self._database.begin(writes=True) as connection:
            return await _forget(connection, self._this(tenant, identity)) > 0

    async def sweep(self) -> int:
        """Delete expired conversations, and return how many they were."""
        if not await schema.has_tables(self._database):
            return 0
        async with self._database.begin(writes=True) as connection:
            return await _forget(connection, conversations.c.expires_ms <= self._now_ms())

    async def run(self) -> None:
        """Sweep repeatedly, until this coroutine is cancelled."""
        while True:
            try:
                await self.sweep()
            except DatabaseDown as err:
                log.warning("old conversations cannot be removed: %s", err)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _first(self, query: Select[Any], tenant: str, identity: str) -> dict[str, Any] | None:
        if not is_storable(identity) or not await schema.has_tables(self._database):
            return None
        async with self._database.begin() as connection:
            row = (await connection.execute(query.where(self._this(tenant, identity)))).mappings().first()
        return dict(row) if row is not None else None

    @asynccontextmanager
    async def _reading(self, tenant: str, identity: str) -> AsyncIterator[AsyncConnection]:
        """Open a transaction in which the conversation exists. Raises ConversationNotFound."""
        if not is_storable(identity) or not await schema.has_tables(self._database):
            raise ConversationNotFound
        there = select(conversations.c.id).where(self._this(tenant, identity))
        async with self._database.begin() as connection:
            if (await connection.execute(there)).first() is None:
                raise ConversationNotFound
            yield connection

    @asynccontextmanager
    async def _adding(self, items: Sequence[Item]) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that adds these items. Raises ItemInvalid."""
        if any(len(item["id"]) > ITEM_ID_LENGTH_MAX or not is_storable(item["id"]) for item in items):
            raise ItemInvalid(f"The id of an item has at most {ITEM_ID_LENGTH_MAX} characters and no NUL.")
        try:
            async with self._database.begin(writes=True) as connection:
                yield connection
        except DatabaseConflict as err:
            raise ItemInvalid("An item has the id of another item of the conversation.") from err

    async def _add(
        self, connection: AsyncConnection, tenant: str, identity: str, items: Sequence[Item], *, beyond: bool
    ) -> None:
        texts = [msgspec.json.encode(item) for item in items]
        now = self._now_ms()
        longer = update(conversations).values(
            bytes=conversations.c.bytes + sum(map(len, texts)),
            item_count=conversations.c.item_count + len(items),
            changed_ms=now,
            expires_ms=now + int(self._kept_seconds * 1000),
        )
        # This locks the conversation until the transaction ends, so that a number is given once.
        if not (await connection.execute(longer.where(self._this(tenant, identity)))).rowcount:
            raise ConversationNotFound
        grown = select(conversations.c.bytes, conversations.c.item_count).where(
            conversations.c.id == identity
        )
        size, end = (await connection.execute(grown)).one()
        if not beyond and (size > BYTES_MAX or end > ITEMS_MAX):
            raise ConversationFull
        rows = [
            {"conversation": identity, "id": item["id"], "number": number, "item": text.decode()}
            for number, (item, text) in enumerate(zip(items, texts, strict=True), end - len(items))
        ]
        if rows:
            await connection.execute(insert(conversation_items), rows)
        await self._forget_oldest(connection, tenant, identity)

    async def _forget_oldest(self, connection: AsyncConnection, tenant: str, changed: str) -> None:
        """Delete conversations of the tenant beyond its bounds, but never the one that has just been changed."""
        sizes = (
            select(conversations.c.id, conversations.c.bytes)
            .where(conversations.c.tenant == tenant)
            .order_by(conversations.c.changed_ms.desc(), conversations.c.id)
        )
        too_many, total = [], 0
        for number, (identity, size) in enumerate((await connection.execute(sizes)).all()):
            total += size
            beyond = number >= self._tenant_conversations_max or total > TENANT_BYTES_MAX
            if beyond and identity != changed:
                too_many.append(identity)
        if too_many:
            await _forget(connection, conversations.c.id.in_(too_many))

    def _this(self, tenant: str, identity: str) -> ColumnElement[bool]:
        return and_(
            conversations.c.id == identity,
            conversations.c.tenant == tenant,
            conversations.c.expires_ms > self._now_ms(),
        )

    def _now_ms(self) -> int:
        return int(self._wall() * 1000)


def _items_of(identity: str) -> Select[Any]:
    return select(conversation_items.c.item).where(conversation_items.c.conversation == identity)


async def _number(connection: AsyncConnection, identity: str, item: str) -> int:
    """Return the number of an item. Raises CursorNotFound."""
    this = and_(conversation_items.c.conversation == identity, conversation_items.c.id == item)
    if is_storable(item):
        number = (await connection.execute(select(conversation_items.c.number).where(this))).scalar()
        if number is not None:
            return int(number)
    raise CursorNotFound


async def _forget(connection: AsyncConnection, these: ColumnElement[bool]) -> int:
    """Delete conversations with their items, and return how many they were."""
    names = select(conversations.c.id).where(these)
    await connection.execute(delete(conversation_items).where(conversation_items.c.conversation.in_(names)))
    return (await connection.execute(delete(conversations).where(these))).rowcount
