"""Result lines of a batch, read in the order of its rows with few in memory at a time."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from sqlalchemy import func, select

from gateway.database.database import Database
from gateway.database.file_batch_tables import batch_rows

ROWS_AT_ONCE = 100
CHARACTERS_AT_ONCE = 4 * 1024 * 1024
"""The most characters that are read at once; a single line of embeddings may have more, and is read alone."""


async def read_result_lines(database: Database, batch: str, *, good: bool | None) -> AsyncIterator[str]:
    """Yield the lines of good or failed results (None: of both). Raises DatabaseDown."""
    last, row, line = -1, batch_rows.c.row, batch_rows.c.line
    these = [batch_rows.c.batch == batch, *([batch_rows.c.good == good] if good is not None else [])]
    while True:
        sizes = select(row, func.length(line)).where(*these, row > last).order_by(row).limit(ROWS_AT_ONCE)
        async with database.begin() as connection:
            upto = _last_of_a_page((await connection.execute(sizes)).all())
            if upto is None:
                return
            asked = select(line).where(*these, row > last, row <= upto).order_by(row)
            page = (await connection.execute(asked)).scalars().all()
        last = upto
        for text in page:
            yield text


def _last_of_a_page(sizes: Sequence[Any]) -> int | None:
    """Return the last of the rows that are read together with the first; None if there are no rows."""
    total, last = 0, None
    for row, size in sizes:
        total += size
        if total > CHARACTERS_AT_ONCE and last is not None:
            break
        last = row
    return last
