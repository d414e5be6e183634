"""A full index is shared fairly: a group loses only what it has above its share."""

from hypothesis import given
from hypothesis import strategies as st

from radix_cache.shared.fair_shares import FairShares


def taken(sizes, bound):
    """What can be taken of each group, one by one."""
    shares = FairShares(sizes, bound)
    return {group: sum(shares.take(group, 1) for _ in range(size)) for group, size in sizes.items()}


def test_a_group_that_needs_less_leaves_the_rest_to_the_others():
    assert taken({"a": 2, "b": 3, "c": 40}, 30) == {"a": 0, "b": 0, "c": 15}
    assert taken({"a": 20, "b": 20}, 30) == {"a": 5, "b": 5}
    assert taken({"a": 5}, 30) == {"a": 0}
    assert taken({}, 30) == {}


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50)), st.integers(0, 200))
def test_all_together_fit_the_bound_and_no_group_falls_below_another_that_lost(sizes, bound):
    lost = taken(sizes, bound)
    left = {group: size - lost[group] for group, size in sizes.items()}
    assert sum(left.values()) <= bound or sum(sizes.values()) <= bound
    for group in lost:
        if lost[group]:
            # What is left over of a division stays unused.
            assert max(left.values()) <= left[group] + 1
            assert sum(left.values()) > bound - len(sizes)
