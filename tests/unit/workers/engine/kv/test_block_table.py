"""Block tables: blocks that sequences share, and the name of the next block."""

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


def test_a_longer_text_shares_the_beginning_and_its_own_tail_branches_off() -> None:
    tree = tree_of(8)
    first = computed(tree, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = computed(tree, [1, 2, 3, 4, 5, 6, 0, 0, 9])
    assert first.ids[0] == second.ids[0]
    assert first.ids[1] != second.ids[1]
    assert tree.cached_blocks == 3


def test_of_two_equal_blocks_computed_at_once_one_is_kept() -> None:
    tree = tree_of(8)
    tables = [BlockTable(tree, [1, 2, 3, 4, 5], "") for _ in range(2)]
    for table in tables:
        table.grow(5)
    for table in tables:
        table.commit([1, 2, 3, 4, 5], 5)
    assert tables[0].ids[0] == tables[1].ids[0]
    assert tree.pool.capacity - tree.pool.free_blocks == 1 + 2
    for table in tables:
        table.close()
    tree.check()


def test_the_next_block_is_named_by_its_whole_prefix() -> None:
    tree = tree_of(8)
    table = BlockTable(tree, [1, 2, 3, 4, 5, 6, 7, 8], "a")
    same, salted = BlockTable(tree, [1, 2, 3, 4, 9], "a"), BlockTable(tree, [1, 2, 3, 4, 9], "b")
    assert table.next_block([1, 2, 3, 4, 5, 6, 7, 8]) == same.next_block([1, 2, 3, 4, 9])
    assert table.next_block([1, 2, 3, 4]) != salted.next_block([1, 2, 3, 4])
    assert table.next_block([1, 2, 3]) is None
