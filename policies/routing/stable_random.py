"""Numbers that look random but are pure functions of their arguments, equal in every process."""

from xxhash import xxh3_64_intdigest

TWO_TO_64 = 2.0**64


def two_distinct(draw: float, count: int) -> tuple[int, int]:
    """Return two different numbers below `count` (at least 2), all pairs equally likely; `draw` is in [0, 1)."""
    one, step = divmod(int(draw * count * (count - 1)), count - 1)
    return one, (one + 1 + step) % count


def rendezvous_weight(name: str, key: int) -> float:
    """Return the rendezvous weight of a name for a key, in [0, 1).

    For each key the weights give another order of names, in which a name that joins or leaves moves no other name
    (Thaler and Ravishankar, 1998).
    """
    return xxh3_64_intdigest(name.encode(), seed=key) / TWO_TO_64
