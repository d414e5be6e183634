"""Calculates the capacity of a deployment: how many users a model on some GPUs can serve, and how fast at best.

    +------------------------------ one GPU of a replica ------------------------------+
    | weights / tensor-parallel | reserve |  KV: blocks of every running sequence  | 1-u |
    +-----------------------------------------------------------------------------------+

    KV bytes per token      2 * layers * kv_heads * head_dim * bytes        the 2 is keys and values; see
                                                                            layer_attention for other kinds of layer
    longest context         (memory - weights) / users / KV bytes per token
    decode step, at least   (weights + KV of every sequence) / bandwidth    each step reads both once
    prefill, at least       (2 * parameters * n + 2 * layers * heads * head_dim * n^2) / FLOP/s
                                                                            parameters that a token uses

The roofline of Williams et al. 2009 with the counts of Pope et al. 2022 (arXiv 2211.05102) and Kaplan et al. 2020
(arXiv 2001.08361, 2 FLOP per parameter and token; attention over a causal half adds the square). GB is 10^9 bytes.
"""

import math
from dataclasses import dataclass

from workers.planning.gpus import Gpu
from workers.planning.model_shape import ModelShape
from workers.planning.number_formats import EXPERTS_ONLY, WEIGHT_BYTES, key_and_value_bytes


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    """Return the bytes of one token's keys and values in all layers: 2 * layers * kv_heads * bytes of one vector.

    `k8v4` keeps keys in INT8 and values in INT4.

    `kv_heads` is required: with grouped queries (GQA) it is not the number of heads, and without it the result
    would be that of one head.
    """
    return layers * kv_heads * key_and_value_bytes(head_dim, dtype)


def context_per_user(*, memory: float, weights: float, users: int, kv_bytes_per_token: float) -> int:
    """Return (memory - weights) / users / KV bytes per token, in whole tokens; 0 if the weights do not fit."""
    require_positive(memory=memory, users=users, kv_bytes_per_token=kv_bytes_per_token)
    return max(0, int((memory - weights) / users / kv_bytes_per_token))


def seconds_per_token(*, bytes_read: float, bandwidth: float) -> float:
    """Return the least time of a decode step: everything it needs is read from memory once."""
    require_positive(bandwidth=bandwidth)
    return bytes_read / bandwidth


def prefill_flops(shape: ModelShape, tokens: int, cached: int = 0) -> float:
    """Return the FLOP to compute `tokens` after `cached` known ones.

    The sum has the linear layers, causal attention, and one row of scores.

    Attention is two products (scores, mix) of 2 FLOP per head dimension, query and key: over the lower triangle
    2 * layers * heads * head_dim * (n^2 - c^2), and less within a window.
    """
    total = cached + tokens
    attention = sum(layer.prefill_flops(total, cached) for layer in shape.attention)
    return 2.0 * shape.multiplied * tokens + attention + 2.0 * shape.vocab * shape.hidden


class InvalidFigure(ValueError):
    """A number is impossible in a plan; the message names it."""


def require_positive(**figures: float) -> None:
    """Raise InvalidFigure for the first figure that is zero, negative, infinite or not a number."""
    for name, value in figures.items():
        if not (math.isfinite(value) and value > 0):
            raise InvalidFigure(f"{name} must be a positive number, not {value}")


class DoesNotFit(ValueError):
    """The deployment cannot exist: the weights, or the way they are divided, do not fit the GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on `gpus` equal GPUs, in replicas of `tensor_parallel` GPUs each.

    The constructor raises DoesNotFit if the deployment cannot exist, and InvalidFigure for an impossible number.
    """

    shape: ModelShape
    gpu: Gpu
    gpus: int = 1
    tensor_parallel: int = 1
    kv_dtype: str = "bf16"
    weight_dtype: str = "bf16"
    block_size: int = 16
    utilisation: float = 1.0
    """Share of a GPU's memory that the engine may take."""
    reserve_bytes: float = 0.0
    """Bytes of that share, per GPU, for activations and graphs."""
    flops_share: float = 1.0
    """Share of the dense FLOP rate that prefill reaches."""
    bandwidth_share: float = 1.0
    """Share of the memory bandwidth that decode reaches."""

    def __post_init__(self) -> None:
        gpu = self.gpu
        require_positive(gpus=self.gpus, tensor_parallel=self.tensor_parallel, block_size=self.block_size)
        require_positive(memory_bytes=gpu.memory_bytes, bandwidth=gpu.bandwidth, flops=gpu.flops)
        require_positive(flops_share=self.flops_share, bandwidth_share=self.bandwidth_share)
        if not 0 < self.utilisation <= 1:
            raise InvalidFigure(f"utilisation must be more than 0 and at most 1, not {self.utilisation}")
        if not (math.isfinite(self.reserve_bytes) and self.reserve_bytes >= 0):
            raise InvalidFigure(f"reserve_bytes must not be negative, not {self.reserve_bytes}")
        if self.gpus % self.tensor_parallel:
            raise DoesNotFit(f"{self.gpus} GPUs are not whole replicas of {self.tensor_parallel}")
        for heads in {layer.heads for layer in self.shape.attention}:
            if heads % self.tensor_parallel:
                raise DoesNotFit(f"{heads} heads cannot be divided over {self.tensor_parallel} GPUs")
        if self.kv_room <= 0:
            raise DoesNotFit(
                f"{self.weights_per_gpu / 1e9:.1f} GB of weights leave no room for keys and values in"
                f" {self.gpu.memory_bytes * self.utilisation / 1e9:.1f} GB per GPU"
            )

    @property
    def replicas(self) -> int:
        """Number of copies of the model."""
        return self.gpus // self.tensor_parallel

    @property
    def linear_bytes(self) -> float:
        """Bytes of a weight that every token uses; some formats are for experts alone."""
        return 2.0 if self.weight_dtype in EXPERTS_ONLY else WEIGHT_BYTES[self.weight_dtype]

    @property
    def weights(self) -> float:
        """Bytes of one copy of the model; embedding, head and norms have at least 16 bits."""
        shape, rest = self.shape, max(self.linear_bytes, 2.0)
        return (
            shape.linear * self.linear_bytes
            + shape.experts * WEIGHT_BYTES[self.weight_dtype]
            + (shape.embedding + shape.head + shape.small) * rest
        )

    @property
    def weights_per_gpu(self) -> float:
        """Bytes of weights on each GPU: an equal part, and the projections that several GPUs hold."""
        copied = sum(
            layer.copied_parameters(self.shape.hidden, self.tensor_parallel) for layer in self.shape.attention
        )
        return (self.weights + copied * self.linear_bytes) / self.tensor_parallel

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's KV over all GPUs of a replica, copies counted once."""
        return sum(layer.token_bytes(self.kv_dtype, 1) for layer in self.shape.attention)

    @property
    def kv_bytes_per_token_per_gpu(self) -> int:
        """Bytes of one token's KV on each GPU of a replica."""
        return sum(layer.token_bytes(self.kv_dtype, self.tensor_parallel) for layer in self.shape.attention)

    @property
    def state_bytes(self) -> int:
        """Bytes that a sequence of any length keeps beside its KV, over all GPUs of a replica."""
        return sum(layer.state_bytes(1) for layer in self.shape.attention)

    @property
    def state_bytes_per_gpu(self) -> int:
        """Bytes that a sequence of any length keeps beside its KV, on each GPU."""
        return sum(layer.state_bytes(self.tensor_parallel) for layer in self.shape.attention)

    @property
    def kv_room(self) -> float:
        """Bytes for keys and values on each GPU."""
        return self.gpu.memory_bytes * self.utilisation - self.weights_per_gpu - self.reserve_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens that a replica's pool holds, in whole blocks; one block is never handed out."""
        blocks = int(self.kv_room // (self.kv_bytes_per_token_per_gpu * self.block_size)) - 1
        return max(0, blocks) * self.block_size

    def sequence_bytes(self, context: int) -> int:
        """Return the bytes of a sequence's KV and state on each GPU.

        A layer with a window w keeps at most ceil(w / block) + 1 blocks.
        """
        size, blocks = self.block_size, -(-context // self.block_size)
        total = self.state_bytes_per_gpu
        for layer in self.shape.attention:
            seen = layer.tokens_read(context)
            kept = blocks if seen == context else min(blocks, -(-seen // size) + 1)
            total += kept * size * layer.token_bytes(self.kv_dtype, self.tensor_parallel)
        return total

    def transferred_bytes(self, context: int) -> int:
        """Return the bytes to transfer to continue a sequence elsewhere: KV within the windows, and state."""
        kept = (
            layer.tokens_read(context) * layer.token_bytes(self.kv_dtype, 1) for layer in self.shape.attention
        )
        return sum(kept) + self.state_bytes

    def users_max(self, context: int) -> int:
        """Return how many sequences of that length fit into all replicas at the same time."""
        usable = self.kv_room - self.kv_bytes_per_token_per_gpu * self.block_size
        return max(0, int(usable // self.sequence_bytes(context))) * self.replicas

    def context_max(self, users: int) -> int:
        """Return the longest context, in whole blocks, that fits into memory for `users` at once; 2^31 at most."""
        low, high = 0, 2**31 // self.block_size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self.users_max(middle * self.block_size) >= users else (low, middle - 1)
            )
        return low * self.block_size

    def decode_bytes(self, batch: int, context: int) -> float:
        """Return the bytes that each GPU reads in one decode step: the used weights, and every sequence's KV."""
        shape = self.shape
        looked_up = 0 if shape.tied else shape.embedding * max(self.linear_bytes, 2.0)
        unused = (shape.experts - shape.experts_read(batch)) * WEIGHT_BYTES[self.weight_dtype]
        return (
            self.weights_per_gpu
            - (looked_up + unused) / self.tensor_parallel
            + batch * self._kv_read(context)
        )

    def _kv_read(self, context: int) -> float:
        read = sum(
            layer.tokens_read(context) * layer.token_bytes(self.kv_dtype, self.tensor_parallel)
            for layer in self.shape.attention
        )
        # A state is read and written.
        return read + 2 * self.state_bytes_per_gpu

    def step_seconds(self, batch: int, context: int) -> float:
        """Return the time of one decode step of a replica: the longer of reading and computing."""
        shape = self.shape
        flops = batch * (2 * shape.multiplied + 2 * shape.vocab * shape.hidden)
        flops += batch * sum(layer.decode_flops(context) for layer in shape.attention)
        reading = self.decode_bytes(batch, context) / (self.gpu.bandwidth * self.bandwidth_share)
        return max(reading, flops / (self.gpu.flops * self.flops_share * self.tensor_parallel))

    def decode_tokens_per_second(self, batch: int, context: int) -> float:
        """Return the decode rate of all replicas together, each with that batch."""
        return self.replicas * batch / self.step_seconds(batch, context)

    def prefill_seconds(self, tokens: int, cached: int = 0) -> float:
        """Return the prefill time of one prompt on one replica, without the cost of links between GPUs."""
        flops = prefill_flops(self.shape, tokens, cached)
        return flops / (self.gpu.flops * self.flops_share * self.tensor_parallel)

    def prefill_tokens_per_second(self, tokens: int) -> float:
        """Return the prefill rate of all replicas together, for prompts of that length."""
        return self.replicas * tokens / self.prefill_seconds(tokens)

    def ttft_seconds(
        self, prompt: int, *, cached: int = 0, batch: int = 1, queue_seconds: float = 0.0
    ) -> float:
        """Return the time to the first token: queue, prefill of the uncached part, and one step with a batch."""
        uncached = max(1, prompt - cached)
        return (
            queue_seconds
            + self.prefill_seconds(uncached, prompt - uncached)
            + self.step_seconds(batch, prompt)
        )
