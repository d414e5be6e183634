"""Draws that depend on names and keys alone."""

from collections import Counter

from policies.routing.stable_random import rendezvous_weight, two_distinct
from tests.unit.policies.routing.candidates import draws


def test_two_different_ones_are_drawn_and_all_pairs_alike():
    pairs = Counter(two_distinct(draw, 4) for draw in draws(1200))
    assert set(pairs) == {(one, other) for one in range(4) for other in range(4) if one != other}
    assert set(pairs.values()) == {100}


def test_a_worker_that_leaves_moves_only_the_keys_it_had():
    def home(key: int, names: str) -> str:
        return max(names, key=lambda name: rendezvous_weight(name, key))

    keys = range(500)
    moved = [key for key in keys if home(key, "abcd") != home(key, "abc")]
    assert all(home(key, "abcd") == "d" for key in moved)
    assert 80 < len(moved) < 170
