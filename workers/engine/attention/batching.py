"""The cut of a step's spans into batches: a batch is a rectangle, padded to the longest of its spans.

    blocks read     1 1 2 | 3 5 6 | 17 24 30 | 190        in ascending order, cut where a span would be
    blocks copied   3 * 2 + 3 * 6 + 3 * 30   + 190        padded to more than twice its blocks

One rectangle over all of them would copy 10 * 190 blocks in every layer, and one row with a long context would slow
down the steps of all others.
"""

from collections.abc import Iterator, Sequence

PADDING_RATIO_MAX = 2
"""How many times the blocks of its shortest span a batch pads that span to at most."""


def cut_batches(widths: Sequence[int], blocks_max: int) -> Iterator[slice]:
    """Yield the batches of adjacent spans.

    Args:
        widths: the blocks that each span reads, about in ascending order.
        blocks_max: the most blocks that one batch copies; a span with more is a batch of its own.
    """
    first, low, high = 0, 0, 0
    for place, width in enumerate(widths):
        wider, narrower = max(high, width), min(low, width)
        fits = (place - first + 1) * wider <= blocks_max and wider <= PADDING_RATIO_MAX * narrower
        if place > first and not fits:
            yield slice(first, place)
            first, wider, narrower = place, width, width
        low, high = (width, width) if place == first else (narrower, wider)
    if widths:
        yield slice(first, len(widths))
