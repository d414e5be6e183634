"""The memory of the rows of a step while one layer computes them, as an upper bound."""

import torch

from workers.engine.checkpoint.model_spec import ModelSpec

_FLOAT32 = 4


def activation_bytes(spec: ModelSpec, dtype: torch.dtype, rows: int) -> int:
    """Return the bytes of hidden states, heads and both halves of the MLP for `rows` rows."""
    heads = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    # The residual, its norm and a layer's output; heads before and after rotation (in float32) and mixed; gate and
    # up, their activation and their product.
    widths = 4 * spec.hidden_size + 3 * heads + 4 * spec.intermediate_size
    return rows * (widths * dtype.itemsize + 2 * heads * _FLOAT32)
