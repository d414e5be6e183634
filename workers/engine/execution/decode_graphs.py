"""Decode steps as CUDA graphs: captured once for some numbers of rows, replayed with other contents.

    buckets    1  2  4  8  16  24  32 ...       a step of 5 rows replays the graph of 8, with 3 rows of padding

Launching some hundred kernels takes the processor longer than a device takes to run them for a few rows; a graph is
launched as a whole. A step that decodes one token of each sequence can be replayed. All other steps, which prefill
or verify drafts, have shapes of their own and are computed as usual, and so are larger batches.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionSpan, AttentionStep
from workers.engine.attention.fixed_decode import FixedDecode
from workers.engine.attention.step_index import StepIndex
from workers.engine.execution.packing import PackedStep
from workers.engine.model.decoder import Decoder

ROWS_MAX = 256
"""The most rows of a graph: with more, the device works longer than the processor launches."""
STEP = 8

Compute = Callable[[], Tensor]
"""A computation on tensors at fixed places, which returns a tensor."""
Capture = Callable[[Compute], Compute]
"""Turns a computation into one that repeats it on the contents that its tensors have at the time of the call."""


@runtime_checkable
class IndexedAttention(Protocol):
    """The interface of an attention backend that makes a step from index tensors before they are filled."""

    def step_of(self, index: StepIndex) -> AttentionStep:
        """Return a step over an index."""
        ...


class DecodeGraphs:
    """The captured decode steps of one decoder; used only by the engine's thread."""

    def __init__(
        self,
        decoder: Decoder,
        attention: IndexedAttention,
        fixed: FixedDecode,
        buckets: Sequence[int],
        capture: Capture,
        device: torch.device,
    ) -> None:
        """Capture a step of each bucket, the largest first, so that the others fit into its memory."""
        self._fixed = fixed
        self._buckets = sorted(buckets)
        self._tokens = torch.zeros(self._buckets[-1], dtype=torch.long, device=device)
        self._replays: dict[int, Compute] = {}
        fixed.fill([])
        with torch.inference_mode():
            for rows in reversed(self._buckets):
                index = fixed.index(rows)
                step = partial(
                    decoder.forward, self._tokens[:rows], index.positions, attention.step_of(index)
                )
                self._replays[rows] = capture(step)

    def bucket(self, spans: Sequence[AttentionSpan]) -> int | None:
        """Return the rows of the graph that computes a step of these spans, or None where no graph does."""
        if len(spans) > self._buckets[-1] or any(span.count > 1 for span in spans):
            return None
        return self._buckets[bisect_left(self._buckets, len(spans))]

    def forward(self, packed: PackedStep) -> Tensor | None:
        """Return the last hidden states [tokens, hidden], valid until the next step; None where no graph fits."""
        rows = self.bucket(packed.spans)
        if rows is None:
            return None
        count = len(packed.spans)
        self._tokens[:count].copy_(packed.tokens)
        self._fixed.fill(packed.spans)
        return self._replays[rows]()[:count]


def bucket_sizes(running_max: int) -> tuple[int, ...]:
    """Return the numbers of rows to capture, for at most `running_max` sequences in a step."""
    most = min(running_max, ROWS_MAX)
    return (*(rows for rows in (1, 2, 4, *range(STEP, most, STEP)) if rows < most), most)
