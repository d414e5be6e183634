"""The capacity of a deployment: how many users a model on some GPUs can serve, and how fast at best, by arithmetic.

    +------------------------------ one GPU of a replica ------------------------------+
    | weights / tensor-parallel | reserve |  KV: blocks of every running sequence  | 1-u |
    +-----------------------------------------------------------------------------------+

    KV bytes per token      2 * layers * kv_heads * head_dim * bytes        the 2 is keys and values
    longest context         (memory - weights) / users / KV bytes per token
    decode step, at least   (weights + KV of every sequence) / bandwidth    each step reads both once
    prefill, at least       (2 * parameters * n + 2 * layers * heads * head_dim * n^2) / FLOP/s

The roofline of Williams et al. 2009 with the counts of Pope et al. 2022 (arXiv 2211.05102) and Kaplan et al. 2020
(arXiv 2001.08361, 2 FLOP per parameter and token; attention over a causal half adds the square). GB is 10^9 bytes.
"""

import math
from dataclasses import dataclass

from workers.planning.gpus import Gpu
from workers.planning.model_shape import ModelShape

KV_GROUP = 64
"""INT4 keys and values that share an fp16 scale and minimum; fewer where the head size is no multiple of it."""

KV_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
KV_DTYPES = (*KV_BYTES, "int8", "int4", "k8v4")
"""Types of keys and values; `k8v4` keeps keys in INT8 and values in INT4."""

WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2.5 / 128}
"""Bytes of a linear weight. INT4 as AWQ and GPTQ store it: 128 share an fp16 scale and a zero point of half a byte.
The scales of FP8 and INT8, one per channel, are less than a thousandth and left out."""


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    """Return the bytes of one token's keys and values in all layers: 2 * layers * kv_heads * bytes of one vector.

    `k8v4` keeps keys in INT8 and values in INT4.

    `kv_heads` is required: with grouped queries (GQA) it is not the number of heads, and without it the result
    would be that of one head.
    """
    key, value = ("int8", "int4") if dtype == "k8v4" else (dtype, dtype)
    return layers * kv_heads * (_vector_bytes(head_dim, key) + _vector_bytes(head_dim, value))


def _vector_bytes(head_dim: int, dtype: str) -> int:
    """Return the bytes of one key or one value of one head.

    INT8 adds an fp16 scale, INT4 an fp16 scale and minimum for each group.
    """
    if dtype == "int8":
        return head_dim + 2
    if dtype == "int4":
        group = head_dim if head_dim <= KV_GROUP else math.gcd(head_dim, KV_GROUP)
        return head_dim // 2 + 4 * (head_dim // group)
    return head_dim * KV_BYTES[dtype]


def kv_heads_per_gpu(kv_heads: int, tensor_parallel: int) -> int:
    """Return the key-value heads of each GPU: tensor parallelism divides heads, but not below one.

    With more GPUs than heads several GPUs hold copies of the same head.
    """
    return max(1, math.ceil(kv_heads / tensor_parallel))


def context_per_user(*, memory: float, weights: float, users: int, kv_bytes_per_token: float) -> int:
    """Return (memory - weights) / users / KV bytes per token, in whole tokens; 0 where the weights do not fit."""
    require_positive(memory=memory, users=users, kv_bytes_per_token=kv_bytes_per_token)
    return max(0, int((memory - weights) / users / kv_bytes_per_token))


def seconds_per_token(*, bytes_read: float, bandwidth: float) -> float:
    """Return the least time of a decode step: everything it needs is read from memory once."""
    require_positive(bandwidth=bandwidth)
    return bytes_read / bandwidth


def prefill_flops(shape: ModelShape, tokens: int, cached: int = 0) -> float:
    """Return the FLOP to compute `tokens` after `cached` known ones.

    They are those of the linear layers, of causal attention, and of one row of scores.

    Attention is two products (scores, mix) of 2 FLOP per head dimension, query and key: over the lower triangle
    2 * layers * heads * head_dim * (n^2 - c^2). Windows are not taken off.
    """
    total = cached + tokens
    attention = 2.0 * shape.layers * shape.heads * shape.head_dim * (total**2 - cached**2)
    return 2.0 * shape.multiplied * tokens + attention + 2.0 * shape.vocab * shape.hidden


class InvalidFigure(ValueError):
    """A number is not one that can be planned with; the message names it."""


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

    Making one raises DoesNotFit where it cannot exist, and InvalidFigure for an impossible number.
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
    """Bytes per GPU that activations and graphs take of that."""
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
        if self.shape.heads % self.tensor_parallel:
            raise DoesNotFit(f"{self.shape.heads} heads cannot be divided over {self.tensor_parallel} GPUs")
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
    def weights(self) -> float:
        """Bytes of one copy of the model; embedding, head and norms have at least 16 bits."""
        shape, each = self.shape, WEIGHT_BYTES[self.weight_dtype]
        rest = shape.embedding + shape.head + shape.small
        return (shape.linear + shape.experts) * each + rest * max(each, 2.0)

    @property
    def weights_per_gpu(self) -> float:
        """Bytes of weights on each GPU: an equal part, and the projections of copied key-value heads."""
        shape, held = self.shape, kv_heads_per_gpu(self.shape.kv_heads, self.tensor_parallel)
        copies = held * self.tensor_parallel - shape.kv_heads
        copied = 2 * shape.layers * shape.hidden * shape.head_dim * max(0, copies)
        return (self.weights + copied * WEIGHT_BYTES[self.weight_dtype]) / self.tensor_parallel

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's KV over all GPUs of a replica, copies counted once."""
        return self._kv_bytes(self.shape.kv_heads)

    @property
    def kv_bytes_per_token_per_gpu(self) -> int:
        """Bytes of one token's KV on each GPU of a replica."""
        return self._kv_bytes(kv_heads_per_gpu(self.shape.kv_heads, self.tensor_parallel))

    def _kv_bytes(self, kv_heads: int) -> int:
        shape = self.shape
        return kv_bytes_per_token(
            layers=shape.layers, kv_heads=kv_heads, head_dim=shape.head_dim, dtype=self.kv_dtype
        )

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
        """Return the KV bytes of a sequence on each GPU.

        A layer with a window w keeps at most ceil(w / block) + 1 blocks.
        """
        size, blocks = self.block_size, -(-context // self.block_size)
        kept = sum(blocks if w is None else min(blocks, -(-w // size) + 1) for w in self.shape.windows)
        return kept * size * (self.kv_bytes_per_token_per_gpu // self.shape.layers)

    def users_max(self, context: int) -> int:
        """Return how many sequences of that length all replicas hold at the same time."""
        usable = self.kv_room - self.kv_bytes_per_token_per_gpu * self.block_size
        return max(0, int(usable // self.sequence_bytes(context))) * self.replicas

    def context_max(self, users: int) -> int:
        """Return the longest context, in whole blocks, that memory allows so many users at once; 2^31 at most."""
        low, high = 0, 2**31 // self.block_size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self.users_max(middle * self.block_size) >= users else (low, middle - 1)
            )
        return low * self.block_size

    def decode_bytes(self, batch: int, context: int) -> float:
        """Return the bytes that each GPU reads in one decode step: the used weights, and every sequence's KV."""
        shape, each = self.shape, WEIGHT_BYTES[self.weight_dtype]
        looked_up = 0 if shape.tied else shape.embedding * max(each, 2.0)
        unused = (shape.experts - shape.experts_read(batch)) * each
        return (
            self.weights_per_gpu
            - (looked_up + unused) / self.tensor_parallel
            + batch * self._kv_read(context)
        )

    def _kv_read(self, context: int) -> float:
        seen = sum(context if width is None else min(context, width) for width in self.shape.windows)
        return seen * self.kv_bytes_per_token_per_gpu / self.shape.layers

    def step_seconds(self, batch: int, context: int) -> float:
        """Return the time of one decode step of a replica: the longer of reading and computing."""
        shape = self.shape
        flops = batch * (2 * shape.multiplied + 2 * shape.vocab * shape.hidden)
        flops += batch * 4.0 * shape.layers * shape.heads * shape.head_dim * context
        reading = self.decode_bytes(batch, context) / (self.gpu.bandwidth * self.bandwidth_share)
        return max(reading, flops / (self.gpu.flops * self.flops_share * self.tensor_parallel))

    def decode_tokens_per_second(self, batch: int, context: int) -> float:
        """Return the decode rate over all replicas, each with that batch."""
        return self.replicas * batch / self.step_seconds(batch, context)

    def prefill_seconds(self, tokens: int, cached: int = 0) -> float:
        """Return the prefill time of one prompt on one replica; links between GPUs cost nothing here."""
        flops = prefill_flops(self.shape, tokens, cached)
        return flops / (self.gpu.flops * self.flops_share * self.tensor_parallel)

    def prefill_tokens_per_second(self, tokens: int) -> float:
        """Return the prefill rate over all replicas, for prompts of that length."""
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
