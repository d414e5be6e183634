"""The tree of the requests under way counts as a plain list of paths does."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from radix_cache.in_flight_tree import InFlightTree

HOLDERS = ("w", "v")


def chained(names: list[int]) -> "array[int]":
    """Return the hashes of a path: each block's hash is of all blocks up to it."""
    return array("Q", [hash(tuple(names[: end + 1])) & (2**63 - 1) for end in range(len(names))])


def common(one: "array[int]", other: "array[int]") -> int:
    """Return the number of leading blocks that two paths have in common."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(chained)
CHANGES = st.lists(
    st.one_of(st.tuples(PATHS, st.sampled_from(HOLDERS)), st.integers(0, 100)), min_size=1, max_size=40
)


@given(CHANGES, PATHS)
def test_the_tree_counts_as_a_list_of_paths_does(changes, asked):
    tree: InFlightTree[str] = InFlightTree()
    under_way = []
    for change in changes:
        if isinstance(change, tuple):
            path, holder = change
            under_way.append((tree.add(path, holder), path, holder))
        elif under_way:
            last, _, holder = under_way.pop(change % len(under_way))
            tree.remove(last, holder)
        reach = dict.fromkeys(HOLDERS, 0)
        for _, path, holder in under_way:
            reach[holder] = max(reach[holder], common(path, asked))
        assert tree.match(asked) == {holder: blocks for holder, blocks in reach.items() if blocks}
        counts = [sum(common(path, asked) > at for _, path, _ in under_way) for at in range(len(asked))]
        shared = tree.shared(asked)
        assert [count for count in counts if count] == [
            part.requests
            for before, part in zip([0, *(part.end for part in shared)], shared, strict=False)
            for _ in range(part.end - before)
        ]
        for holder in HOLDERS:
            paths = [path for _, path, at in under_way if at == holder]
            different = {block for path in paths for block in path}
            assert tree.repeated.get(holder, 0) == sum(map(len, paths)) - len(different)
        assert tree.blocks == len({block for _, path, _ in under_way for block in path})
        ends = {tuple(path) for _, path, _ in under_way}
        assert len(tree) <= 2 * len(ends)
    for last, _, holder in under_way:
        tree.remove(last, holder)
    assert (len(tree), tree.blocks, tree.repeated) == (0, 0, {})


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5, unique=True), max_size=12), st.randoms())
def test_paths_with_equal_hashes_by_chance_leave_nothing_behind(names, chance):
    """Blocks are not chained here, so that one hash stands at several places of several paths."""
    tree: InFlightTree[str] = InFlightTree()
    nodes = [tree.add(array("Q", each), "w") for each in names]
    chance.shuffle(nodes)
    for node in nodes:
        tree.match(array("Q", [1, 2, 3, 4]))
        tree.remove(node, "w")
    assert (len(tree), tree.blocks, tree.repeated) == (0, 0, {})
