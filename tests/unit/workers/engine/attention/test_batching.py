"""Batches of spans are padded little, bounded in size, and few."""

import random

import pytest

from workers.engine.attention.batching import PADDING_RATIO_MAX, cut_batches

UNBOUNDED = 1 << 30


def cut(widths: list[int], blocks_max: int = UNBOUNDED) -> list[list[int]]:
    return [widths[batch] for batch in cut_batches(widths, blocks_max)]


def test_spans_of_about_one_length_are_one_batch_and_a_long_one_is_another() -> None:
    assert cut([1, 1, 2, 3, 5, 6, 17, 24, 30, 190]) == [[1, 1, 2], [3, 5, 6], [17, 24, 30], [190]]
    assert cut([]) == []
    assert cut([7]) == [[7]]


def test_a_window_that_reads_one_block_more_or_less_does_not_split_a_batch() -> None:
    assert cut([9, 8, 9, 9, 8]) == [[9, 8, 9, 9, 8]]


def test_a_batch_copies_no_more_blocks_than_its_bound_unless_one_span_alone_does() -> None:
    assert cut([4, 4, 4, 4, 5], blocks_max=9) == [[4, 4], [4, 4], [5]]
    assert cut([20, 30], blocks_max=9) == [[20], [30]]


@pytest.mark.parametrize("seed", range(20))
def test_padding_is_bounded_and_batches_are_few_for_any_ascending_lengths(seed: int) -> None:
    chance = random.Random(seed)
    widths = sorted(int(2 ** (chance.random() * 12)) for _ in range(chance.randrange(1, 200)))
    batches = cut(widths)
    assert [width for batch in batches for width in batch] == widths
    assert all(max(batch) <= PADDING_RATIO_MAX * min(batch) for batch in batches)
    assert len(batches) <= 13
