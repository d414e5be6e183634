"""A tree of drafts: its levels, its paths, and the path that the drawn tokens follow."""

import random

import pytest

from workers.engine.draft_tree import DraftTree

TREE = DraftTree((-1, -1, 0, 0, 2))
"""The tree that the module draws: a b c d e."""


def random_tree(chance: random.Random, drafts: int) -> DraftTree:
    """A tree of any shape, its drafts level by level."""
    depths, parents = [0], [-1]
    while len(parents) < drafts:
        depth = chance.choice((depths[-1], depths[-1] + 1))
        before = [number for number, known in enumerate(depths) if known == depth - 1]
        parents.append(chance.choice(before) if depth else -1)
        depths.append(depth)
    return DraftTree(tuple(parents))


def test_levels_and_paths_are_those_of_the_picture() -> None:
    assert TREE.depths == (0, 0, 1, 1, 2)
    assert TREE.sizes == (0, 2, 4, 5)
    assert TREE.paths == ((0,), (1,), (0, 2), (0, 3), (0, 2, 4))
    rows = ["".join(" x"[seen] for seen in row).rstrip() for row in TREE.attended_rows()]
    assert rows == ["x", "xx", "x x", "xx x", "xx  x", "xx x x"]


def test_a_chain_is_the_tree_in_which_each_draft_follows_the_one_before() -> None:
    chain = DraftTree((-1, 0, 1, 2))
    assert chain.is_chain
    assert chain.sizes == (0, 1, 2, 3, 4)
    assert [sum(row) for row in chain.attended_rows()] == [1, 2, 3, 4, 5]
    assert not TREE.is_chain


def test_the_first_levels_of_a_tree_are_a_tree() -> None:
    assert TREE.first(2) == DraftTree((-1, -1))
    assert TREE.first(4).depths == TREE.depths[:4]
    assert TREE.first(5) is TREE
    assert DraftTree(()).sizes == (0,)


@pytest.mark.parametrize(
    ("drawn", "path"),
    [
        ([1, 0, 0, 0, 0, 0], [0]),
        ([2, 0, 9, 0, 0, 0], [1]),
        ([1, 4, 0, 0, 7, 0], [0, 3]),
        ([1, 3, 0, 5, 0, 7], [0, 2, 4]),
        ([9, 3, 0, 5, 0, 7], []),
        # The second candidate was drawn; what comes below the first one is not looked at.
        ([2, 3, 0, 5, 0, 7], [1]),
    ],
)
def test_the_accepted_path_follows_the_drawn_tokens(drawn: list[int], path: list[int]) -> None:
    assert TREE.accepted_path([1, 2, 3, 4, 5], drawn) == path


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_drawn_the_path_is_the_one_that_a_search_finds(seed: int) -> None:
    chance = random.Random(seed)
    tree = random_tree(chance, 12)
    # No two drafts after one parent are the same: heads propose different tokens.
    drafts = [tree.parents[:number].count(parent) for number, parent in enumerate(tree.parents)]
    drawn = [chance.randrange(3) for _ in range(13)]
    row, wanted = 0, []
    while True:
        below = [n for n, parent in enumerate(tree.parents) if parent == row - 1 and drafts[n] == drawn[row]]
        if not below:
            break
        wanted.append(below[0])
        row = below[0] + 1
    assert tree.accepted_path(drafts, drawn) == wanted
