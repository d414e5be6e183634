"""The memory that CUDA graphs of decode steps take besides weights and KV.

activations    of the largest bucket, once: the graphs share one pool
results        hidden states of each bucket, which stay in the pool
index          slots, positions and tables of all rows, on the device
graphs         memory of the driver and of cuBLAS for a captured graph: an allowance, not a formula
"""

from collections.abc import Sequence

import torch

from workers.engine.attention.fixed_decode import fixed_numbers
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.execution.activations import activation_bytes

_INT64 = 8
CUBLAS_BYTES = 64 << 20
"""The allowance for workspaces of cuBLAS on the streams of warm-up and capture."""
GRAPH_BYTES = 4 << 20
"""The allowance for each captured graph in the driver's own memory."""


def graph_bytes(
    spec: ModelSpec, buckets: Sequence[int], *, context_length: int, block_size: int, dtype: torch.dtype
) -> int:
    """Return the bytes of the graphs for these buckets; 0 without buckets."""
    if not buckets:
        return 0
    most = max(buckets)
    return (
        activation_bytes(spec, dtype, most)
        + sum(buckets) * spec.hidden_size * dtype.itemsize
        + (fixed_numbers(most, context_length, block_size) + most) * _INT64
        + CUBLAS_BYTES
        + len(buckets) * GRAPH_BYTES
    )
