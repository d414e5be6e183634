"""The index tensors of decode steps at fixed places, as a CUDA graph reads them: one token of each sequence.

    numbers   [ slots | positions | tiles | tables of all rows, one after the other ]     filled before each replay
    rows      [ a | b | c | padding | ... ]      a padding row has one key: the first token of the spare block

Steps with different numbers of rows are views of the same numbers, so that one copy fills any of them.
"""

from collections.abc import Sequence

import torch

from workers.engine.attention.attention_backend import AttentionSpan
from workers.engine.attention.step_index import TILE_NUMBERS, StepIndex, TileGroup
from workers.engine.attention.tiles import split_count, tile_rows
from workers.engine.errors import StepFailed
from workers.engine.id_tensor import id_tensor

_PADDING_TILE = (1, 0, 1)
"""The count, start and end of a padding row's tile."""


class FixedDecode:
    """The index of decode steps of up to `rows` sequences; filled by one thread, one step at a time."""

    def __init__(
        self,
        *,
        rows: int,
        context_length: int,
        block_size: int,
        group: int,
        kv_heads: int,
        device: torch.device,
    ) -> None:
        """Allocate the tensors.

        Args:
            rows: the most sequences of a step.
            context_length: tokens of the longest sequence.
            block_size: tokens of a block.
            group: query heads of a key head.
            kv_heads: key heads of the model.
            device: where the kernels read them.
        """
        self._rows, self._context_length, self._block_size = rows, context_length, block_size
        self._group, self._kv_heads = group, kv_heads
        count = fixed_numbers(rows, context_length, block_size)
        self._numbers = torch.zeros(count, dtype=torch.long, device=device)
        self._staged = torch.zeros(count, dtype=torch.long, pin_memory=device.type == "cuda")

    def index(self, rows: int) -> StepIndex:
        """Return the index of a step of `rows` rows, padding included."""
        most, numbers = self._rows, self._numbers
        slots, positions, tiles, blocks = numbers.split_with_sizes(
            [most, most, most * TILE_NUMBERS, len(numbers) - most * (2 + TILE_NUMBERS)]
        )
        return StepIndex(
            slots=slots[:rows],
            positions=positions[:rows],
            blocks=blocks,
            short=TileGroup(
                tiles=tiles.view(-1, TILE_NUMBERS)[:rows],
                rows=tile_rows(1, self._group),
                splits=split_count(rows * self._kv_heads, self._context_length),
            ),
            long=None,
        )

    def fill(self, spans: Sequence[AttentionSpan]) -> None:
        """Write the rows of `spans`, each of one token; all other rows become padding.

        Raises:
            StepFailed: there are more spans, or longer ones, than the tensors were made for.
        """
        size, most = self._block_size, self._rows
        if len(spans) > most or any(span.end > self._context_length for span in spans):
            raise StepFailed("a decode step is larger than its CUDA graph")
        # Entry 0 of the tables is the spare block, which padding reads.
        blocks, slots, positions, tiles = [0], [0] * most, [0] * most, []
        for row, span in enumerate(spans):
            table = span.blocks[: span.start // size + 1]
            slots[row] = table[-1] * size + span.start % size
            positions[row] = span.start
            tiles += [row, 1, span.start, span.end, len(blocks)]
            blocks += table
        for row in range(len(spans), most):
            tiles += [row, *_PADDING_TILE, 0]
        numbers = slots + positions + tiles + blocks
        self._staged[: len(numbers)] = id_tensor(numbers, self._staged.device)
        self._numbers[: len(numbers)].copy_(self._staged[: len(numbers)])


def fixed_numbers(rows: int, context_length: int, block_size: int) -> int:
    """Return how many numbers the index of `rows` rows has at most."""
    return rows * (2 + TILE_NUMBERS + -(-context_length // block_size)) + 1
