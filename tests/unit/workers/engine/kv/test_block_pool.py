"""The pool of KV blocks: taken, held, released, and never twice."""

import pytest

from workers.engine.errors import BlockMisused
from workers.engine.kv.block_pool import BlockPool

SIZE = 4


def test_block_zero_is_never_handed_out() -> None:
    assert 0 not in BlockPool(8, SIZE).allocate(8)


def test_a_block_freed_twice_raises() -> None:
    pool = BlockPool(2, SIZE)
    (block,) = pool.allocate(1)
    pool.release(block)
    with pytest.raises(BlockMisused):
        pool.release(block)


@pytest.mark.parametrize("block", [0, -1, 3, 99])
def test_blocks_without_a_holder_cannot_be_held_or_released(block: int) -> None:
    pool = BlockPool(2, SIZE)
    with pytest.raises(BlockMisused):
        pool.retain(block)
    with pytest.raises(BlockMisused):
        pool.release(block)


def test_taking_more_than_there_is_takes_nothing() -> None:
    pool = BlockPool(2, SIZE)
    with pytest.raises(BlockMisused):
        pool.allocate(3)
    assert pool.free_blocks == 2


def test_a_block_is_kept_until_its_last_holder_leaves() -> None:
    pool = BlockPool(1, SIZE)
    (block,) = pool.allocate(1)
    pool.retain(block)
    pool.release(block)
    assert pool.free_blocks == 0
    pool.release(block)
    assert pool.free_blocks == 1
