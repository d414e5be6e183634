"""Plain text tables: numbers are aligned to the right, everything else to the left."""

from collections.abc import Iterator, Sequence

Row = Sequence[str | int]


def format_columns(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one line for each row, with columns aligned.

    The first row is the head. All rows have equally many cells. Column widths are not limited.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in texts) for at in range(len(texts[0]))]
    right = [any(isinstance(row[at], int) for row in rows) for at in range(len(widths))]
    for row in texts:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        yield "  ".join(cells).rstrip()
