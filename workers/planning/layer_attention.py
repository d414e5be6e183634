"""The attention of one layer: the bytes that it caches for a token or a sequence, and its FLOP.

    heads     keys and values of key-value heads     2 * kv_heads * head_dim numbers for each token in the window
    latent    one vector, shared by all heads        rank + rope_dim numbers for each token
    linear    a state for each sequence              value_heads * key_dim * value_dim numbers

Latent attention is MLA (DeepSeek-AI 2024, arXiv 2405.04434), linear attention gated DeltaNet (Yang et al. 2024,
arXiv 2412.06464). Tensor parallelism divides heads and states. A latent vector has no heads, so every GPU of a
replica holds all of it.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from workers.planning.number_formats import key_and_value_bytes, vector_bytes

STATE_BYTES = 4
"""Bytes of a number of a linear layer's state, which is kept in float32."""
CONVOLUTION_BYTES = 2
"""Bytes of a number of a linear layer's convolution, which keeps its last inputs in 16 bits."""


class LayerAttention(Protocol):
    """What a plan needs of the attention of one layer. `gpus`: the GPUs of one replica."""

    @property
    def heads(self) -> int:
        """Number of query heads, or of value heads in a linear layer, which tensor parallelism must divide."""
        ...

    def token_bytes(self, dtype: str, gpus: int) -> int:
        """Return the bytes of one token on each GPU."""
        ...

    def state_bytes(self, gpus: int) -> int:
        """Return the bytes on each GPU for one sequence that do not depend on its length."""
        ...

    def tokens_read(self, context: int) -> int:
        """Return how many tokens a decode step reads for a sequence of `context`."""
        ...

    def prefill_flops(self, total: int, cached: int) -> float:
        """Return the FLOP of tokens `cached` to `total` of a sequence, without the linear layers."""
        ...

    def decode_flops(self, context: int) -> float:
        """Return the FLOP of one more token after `context`, without the linear layers."""
        ...

    def copied_parameters(self, hidden: int, gpus: int) -> int:
        """Return the number of extra copies of parameters over all GPUs."""
        ...


def kv_heads_per_gpu(kv_heads: int, tensor_parallel: int) -> int:
    """Return the key-value heads of each GPU: tensor parallelism divides heads, but not below one.

    With more GPUs than heads several GPUs hold copies of the same head.
    """
    return max(1, math.ceil(kv_heads / tensor_parallel))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAttention:
    """Attention over keys and values of every position, or of a sliding window."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """How many positions a token attends to; None: all."""

    def token_bytes(self, dtype: str, gpus: int) -> int:
        """Return the bytes of the keys and values of the heads on each GPU."""
        return kv_heads_per_gpu(self.kv_heads, gpus) * key_and_value_bytes(self.head_dim, dtype)

    def state_bytes(self, gpus: int) -> int:
        """Return 0: everything grows with the sequence."""
        return 0

    def tokens_read(self, context: int) -> int:
        """Return the tokens within the window."""
        return context if self.window is None else min(context, self.window)

    def prefill_flops(self, total: int, cached: int) -> float:
        """Return two products, scores and mix, of 2 FLOP per head dimension, query and visible key."""
        return 4.0 * self.heads * self.head_dim * (self._pairs(total) - self._pairs(cached))

    def decode_flops(self, context: int) -> float:
        """Return both products of one query with the keys that it attends to."""
        return 4.0 * self.heads * self.head_dim * self.tokens_read(context)

    def copied_parameters(self, hidden: int, gpus: int) -> int:
        """Return the projections of key-value heads that several GPUs hold."""
        copies = kv_heads_per_gpu(self.kv_heads, gpus) * gpus - self.kv_heads
        return 2 * hidden * self.head_dim * max(0, copies)

    def _pairs(self, tokens: int) -> float:
        """Return the pairs of a query and a visible key: a triangle, and a band behind the window."""
        width = self.tokens_read(tokens)
        return width**2 / 2 + (tokens - width) * width


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of all heads are computed from one cached vector."""

    heads: int
    rank: int
    """Numbers of the compressed vector (`kv_lora_rank`)."""
    rope_dim: int
    """Numbers of the key that is rotated, and cached beside the vector (`qk_rope_head_dim`)."""
    key_dim: int
    """Numbers of a key without its rotated part (`qk_nope_head_dim`)."""
    value_dim: int

    def token_bytes(self, dtype: str, gpus: int) -> int:
        """Return the bytes of a cached vector, on every GPU; `k8v4` keeps it in INT8, as keys."""
        return vector_bytes(self.rank + self.rope_dim, "int8" if dtype == "k8v4" else dtype)

    def state_bytes(self, gpus: int) -> int:
        """Return 0: everything grows with the sequence."""
        return 0

    def tokens_read(self, context: int) -> int:
        """Return the whole context."""
        return context

    def prefill_flops(self, total: int, cached: int) -> float:
        """Return the products with the keys and values of each head, which prefill computes from the vectors."""
        return self.heads * (self.key_dim + self.rope_dim + self.value_dim) * (float(total) ** 2 - cached**2)

    def decode_flops(self, context: int) -> float:
        """Return the products with the vectors themselves: decode keeps them compressed."""
        return 2.0 * self.heads * (2 * self.rank + self.rope_dim) * context

    def copied_parameters(self, hidden: int, gpus: int) -> int:
        """Return the projections to the vector, which every GPU computes."""
        return (gpus - 1) * hidden * (self.rank + self.rope_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """A gated DeltaNet layer: a short convolution, and a state that each token updates."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Positions that the convolution covers, the newest included."""

    @property
    def heads(self) -> int:
        """The value heads."""
        return self.value_heads

    @property
    def convolved(self) -> int:
        """The channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def token_bytes(self, dtype: str, gpus: int) -> int:
        """Return 0: a token leaves nothing of its own."""
        return 0

    def state_bytes(self, gpus: int) -> int:
        """Return the bytes of the state and of the convolution's last inputs on each GPU."""
        state = self.value_heads * self.key_dim * self.value_dim * STATE_BYTES
        return math.ceil((state + (self.kernel - 1) * self.convolved * CONVOLUTION_BYTES) / gpus)

    def tokens_read(self, context: int) -> int:
        """Return 0: only the state is read."""
        return 0

    def prefill_flops(self, total: int, cached: int) -> float:
        """Return those of each token, as if it were alone."""
        return (total - cached) * self.decode_flops(0)

    def decode_flops(self, context: int) -> float:
        """Return three products with the state: its reading, its update, its result."""
        return 6.0 * self.value_heads * self.key_dim * self.value_dim + 2 * self.kernel * self.convolved

    def copied_parameters(self, hidden: int, gpus: int) -> int:
        """Return 0: heads are divided."""
        return 0
