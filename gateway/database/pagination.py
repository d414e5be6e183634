"""Pages of a tenant's responses, files or batches; `after` is the id of the last row that the client has."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.database.storable_text import is_storable


class CursorNotFound(Exception):
    """There is no row of the id after which the page is to begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The part of a list that a client requests."""

    limit: int
    after: str | None = None  # the id of the row before the page
    newest_first: bool = True


async def read_page(
    connection: AsyncConnection, table: Table, where: ColumnElement[bool], page: PageRequest
) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows of a page, and whether there are more. Raises CursorNotFound."""
    columns = (table.c.created_ms, table.c.id)
    if page.after is not None:
        if not is_storable(page.after):
            raise CursorNotFound
        asked = select(*columns).where(where, table.c.id == page.after)
        last = (await connection.execute(asked)).first()
        if last is None:
            raise CursorNotFound
        where = and_(where, _beyond(table, *last, newest_first=page.newest_first))
    order = [column.desc() if page.newest_first else column for column in columns]
    query = select(table).where(where).order_by(*order).limit(page.limit + 1)
    rows = [dict(row) for row in (await connection.execute(query)).mappings()]
    return rows[: page.limit], len(rows) > page.limit


def _beyond(table: Table, created_ms: int, identity: str, *, newest_first: bool) -> ColumnElement[bool]:
    """Return the condition for rows after that one; ids order rows that were created at the same time."""
    created, name = table.c.created_ms, table.c.id
    if newest_first:
        return or_(created < created_ms, and_(created == created_ms, name < identity))
    return or_(created > created_ms, and_(created == created_ms, name > identity))
