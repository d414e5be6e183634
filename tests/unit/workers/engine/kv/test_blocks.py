"""Pool, prefix tree and block tables, one behaviour at a time. The state machine is in test_ownership.py."""

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


def test_block_zero_is_never_handed_out() -> None:
    assert 0 not in BlockPool(8, SIZE).take(8)


def test_a_block_freed_twice_raises() -> None:
    pool = BlockPool(2, SIZE)
    (block,) = pool.take(1)
    pool.release(block)
    with pytest.raises(BlockMisused):
        pool.release(block)


@pytest.mark.parametrize("block", [0, -1, 3, 99])
def test_blocks_that_nobody_holds_cannot_be_held_or_released(block: int) -> None:
    pool = BlockPool(2, SIZE)
    with pytest.raises(BlockMisused):
        pool.hold(block)
    with pytest.raises(BlockMisused):
        pool.release(block)


def test_taking_more_than_there_is_takes_nothing() -> None:
    pool = BlockPool(2, SIZE)
    with pytest.raises(BlockMisused):
        pool.take(3)
    assert pool.free == 2


def test_a_block_lives_until_its_last_holder_leaves() -> None:
    pool = BlockPool(1, SIZE)
    (block,) = pool.take(1)
    pool.hold(block)
    pool.release(block)
    assert pool.free == 0
    pool.release(block)
    assert pool.free == 1


@pytest.mark.parametrize(
    ("length", "blocks"), [(1, 0), (SIZE - 1, 0), (SIZE, 0), (SIZE + 1, 1), (2 * SIZE, 1), (2 * SIZE + 1, 2)]
)
def test_a_match_always_leaves_one_token_to_compute(length: int, blocks: int) -> None:
    tree = tree_of(8)
    computed(tree, list(range(12))).close()
    assert blocks == tree.depth_of(list(range(length)), "")
    assert blocks == BlockTable(tree, list(range(length)), "").shared_blocks


def test_only_full_blocks_are_shared() -> None:
    tree = tree_of(8)
    computed(tree, list(range(2 * SIZE - 1))).close()
    assert tree.cached == 1


def test_another_salt_finds_nothing() -> None:
    tree = tree_of(8)
    computed(tree, list(range(9)), "acme").close()
    assert tuple(tree.depth_of(list(range(9)), salt) for salt in ("acme", "zeta", "")) == (2, 0, 0)


def test_a_longer_text_shares_the_beginning_and_its_own_tail_branches_off() -> None:
    tree = tree_of(8)
    first = computed(tree, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = computed(tree, [1, 2, 3, 4, 5, 6, 0, 0, 9])
    assert first.ids[0] == second.ids[0]
    assert first.ids[1] != second.ids[1]
    assert tree.cached == 3


def test_of_two_equal_blocks_computed_at_once_one_is_kept() -> None:
    tree = tree_of(8)
    tables = [BlockTable(tree, [1, 2, 3, 4, 5], "") for _ in range(2)]
    for table in tables:
        table.grow(5)
    for table in tables:
        table.commit([1, 2, 3, 4, 5], 5)
    assert tables[0].ids[0] == tables[1].ids[0]
    assert tree.pool.capacity - tree.pool.free == 1 + 2
    for table in tables:
        table.close()
    tree.check()


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    tree = tree_of(5)
    old, new = [1] * 9, [2] * 9
    computed(tree, old).close()
    computed(tree, new).close()
    BlockTable(tree, old, "").close()
    tree.take(2)
    assert (tree.depth_of(old, ""), tree.depth_of(new, "")) == (2, 1)


def test_tails_go_before_heads() -> None:
    tree = tree_of(3)
    computed(tree, list(range(12))).close()
    depths = []
    for _ in range(3):
        tree.take(1)
        depths.append(tree.depth_of(list(range(13)), ""))
    assert depths == [2, 1, 0]


def test_what_a_sequence_reads_is_never_evicted() -> None:
    tree = tree_of(4)
    computed(tree, [1] * 9).close()
    reader = BlockTable(tree, [1] * 9, "")
    assert tree.available == 2
    with pytest.raises(BlockMisused):
        tree.take(3)
    assert 2 == reader.shared_blocks == tree.cached


def test_a_salt_whose_last_block_went_is_forgotten() -> None:
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
    assert (tree.cached, tree.pool.free) == (0, 4)


def test_the_next_block_is_named_by_its_whole_prefix() -> None:
    tree = tree_of(8)
    table = BlockTable(tree, [1, 2, 3, 4, 5, 6, 7, 8], "a")
    same, salted = BlockTable(tree, [1, 2, 3, 4, 9], "a"), BlockTable(tree, [1, 2, 3, 4, 9], "b")
    assert table.next_block([1, 2, 3, 4, 5, 6, 7, 8]) == same.next_block([1, 2, 3, 4, 9])
    assert table.next_block([1, 2, 3, 4]) != salted.next_block([1, 2, 3, 4])
    assert table.next_block([1, 2, 3]) is None
