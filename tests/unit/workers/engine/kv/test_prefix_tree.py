"""The prefix tree of KV blocks: matches, salts and eviction. The state machine is in test_ownership.py."""

import pytest

from workers.engine.errors import BlockMisused
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockTable
from workers.engine.kv.prefix_tree import PrefixTree

SIZE = 4


def tree_of(capacity: int) -> PrefixTree:
    return PrefixTree(BlockPool(capacity, SIZE))


def computed(tree: PrefixTree, tokens: list[int], salt: str = "") -> BlockTable:
    """A sequence that has computed all of its tokens."""
    table = BlockTable(tree, tokens, salt)
    table.grow(len(tokens))
    table.commit(tokens, len(tokens))
    return table


@pytest.mark.parametrize(
    ("length", "blocks"), [(1, 0), (SIZE - 1, 0), (SIZE, 0), (SIZE + 1, 1), (2 * SIZE, 1), (2 * SIZE + 1, 2)]
)
def test_a_match_always_leaves_one_token_to_compute(length: int, blocks: int) -> None:
    tree = tree_of(8)
    computed(tree, list(range(12))).close()
    assert blocks == tree.match_depth(list(range(length)), "")
    assert blocks == BlockTable(tree, list(range(length)), "").shared_blocks


def test_only_full_blocks_are_shared() -> None:
    tree = tree_of(8)
    computed(tree, list(range(2 * SIZE - 1))).close()
    assert tree.cached_blocks == 1


def test_another_salt_finds_nothing() -> None:
    tree = tree_of(8)
    computed(tree, list(range(9)), "acme").close()
    assert tuple(tree.match_depth(list(range(9)), salt) for salt in ("acme", "zeta", "")) == (2, 0, 0)


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    tree = tree_of(5)
    old, new = [1] * 9, [2] * 9
    computed(tree, old).close()
    computed(tree, new).close()
    BlockTable(tree, old, "").close()
    tree.allocate(2)
    assert (tree.match_depth(old, ""), tree.match_depth(new, "")) == (2, 1)


def test_tails_go_before_heads() -> None:
    tree = tree_of(3)
    computed(tree, list(range(12))).close()
    depths = []
    for _ in range(3):
        tree.allocate(1)
        depths.append(tree.match_depth(list(range(13)), ""))
    assert depths == [2, 1, 0]


def test_what_a_sequence_reads_is_never_evicted() -> None:
    tree = tree_of(4)
    computed(tree, [1] * 9).close()
    reader = BlockTable(tree, [1] * 9, "")
    assert tree.available_blocks == 2
    with pytest.raises(BlockMisused):
        tree.allocate(3)
    assert 2 == reader.shared_blocks == tree.cached_blocks


def test_a_salt_whose_last_block_went_is_dropped() -> None:
    tree = tree_of(2)
    for number in range(50):
        computed(tree, [1] * 5, f"salt {number}").close()
    tree.check()
    assert len(tree._roots) == 1


def test_clearing_is_refused_while_anything_is_read() -> None:
    tree = tree_of(4)
    table = computed(tree, [1] * 9)
    assert not tree.clear()
    table.close()
    assert tree.clear()
    assert (tree.cached_blocks, tree.pool.free_blocks) == (0, 4)
