"""Lots: numbers that look random and are a function of what they are drawn from, alike in every process."""

from xxhash import xxh3_64_intdigest

TWO_TO_64 = 2.0**64


def two_of(draw: float, count: int) -> tuple[int, int]:
    """Two different numbers below `count` (at least 2), all pairs equally likely; `draw` in [0, 1)."""
    one, step = divmod(int(draw * count * (count - 1)), count - 1)
    return one, (one + 1 + step) % count


def affinity(name: str, key: int) -> float:
    """Rendezvous weight in [0, 1): for each key another order of names, in which a name that joins or leaves
    moves no other (Thaler and Ravishankar, 1998)."""
    return xxh3_64_intdigest(name.encode(), seed=key) / TWO_TO_64
