"""The cell that a tenant belongs to, by rendezvous hashing of its organisation (Thaler and Ravishankar 1998).

    owner of an organisation = the living cell with the largest XXH3-64 (seed 0) of

        NAME OF THE CELL <NUL> ORGANISATION        both in UTF-8

A cell that joins takes its part of the organisations from all others; one that leaves gives up its own, and no
other organisation moves. The rule needs only the names of the living cells, so a load balancer can follow it too.
"""

from collections.abc import Collection

from xxhash import xxh3_64_intdigest


def owner_of(organisation: str, cells: Collection[str]) -> str | None:
    """Return the cell that an organisation belongs to; None where there is no cell."""
    return max(
        cells, key=lambda cell: (xxh3_64_intdigest(f"{cell}\0{organisation}".encode()), cell), default=None
    )
