"""The cell that a tenant belongs to, by rendezvous hashing of its organisation (Thaler and Ravishankar 1998).

    owner of an organisation = the living cell with the largest XXH3-64 (seed 0) of

        NAME OF THE CELL <NUL> ORGANISATION        both in UTF-8

A cell that joins takes its part of the organisations from all others; one that leaves gives up its own, and no
other organisation moves. The rule needs only the names of the living cells, so a load balancer can follow it too.

Workers serve all cells, and each worker is at home in one of them, its home cell, by the same rule. Cells get each
other's loads late, so that all of them would choose the worker that was idle a moment ago. So a cell counts more
tokens as queued on the workers that are at home elsewhere (away_tokens), and more for a longer prompt (AWAY_RISK of
policies/routing/estimate.py): it takes one of its own, and another one where its own have much to do. These tokens
are less than the others' fair part of a window: a cell whose own workers are full takes others, also where the
others fill its own, of which it counts that part.
"""

from collections.abc import Collection

from xxhash import xxh3_64_intdigest

AWAY_TOKENS = 3000
"""The most tokens that a cell counts as queued in addition on a worker that is at home in another cell."""

AWAY_SHARE = 0.95
"""Share that these tokens are at most of what a cell counts of the others on a worker that they fill."""


def owner_of(organisation: str, cells: Collection[str]) -> str | None:
    """Return the cell that an organisation belongs to; None where there is no cell."""
    return max(
        cells, key=lambda cell: (xxh3_64_intdigest(f"{cell}\0{organisation}".encode()), cell), default=None
    )


def home_of(worker: str, cells: Collection[str]) -> str | None:
    """Return the cell that a worker is at home in, by the same rule as a tenant's."""
    return owner_of(worker, cells)


def fair_part(window_tokens: int, others: int) -> int:
    """Return how many tokens of a worker's window so many other cells may fill while this one needs its own."""
    return window_tokens * others // (others + 1)


def away_tokens(window_tokens: int, others: int, before: int = 0) -> int:
    """Return how many tokens count as queued in addition on a worker that is at home in another cell.

    `window_tokens`: the worker's window. `others`: how many other cells there are. `before`: the number so far;
    small changes of the window keep it, since with each new number all workers are ranked again.
    """
    most = min(AWAY_TOKENS, int(AWAY_SHARE * fair_part(window_tokens, others)))
    if most < 2 * before <= 2 * most:
        return before
    return most if most == AWAY_TOKENS else most * 7 // 8
