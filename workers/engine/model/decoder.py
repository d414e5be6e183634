"""The one decoder: Llama and Qwen2 differ only in which biases exist.

    tokens -> embedding -> [ + attention(norm x) ; + mlp(norm x) ] x layers -> norm -> head (only sampled rows)

The batch is ragged and flat: rows of all sequences stand one after another, [tokens, hidden], and only attention
knows whose row is whose. What it needs is handed down as an argument: any number of decoders can share a process.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from workers.engine.attention.base import AttentionStep
from workers.engine.model.rope import RopeTable, rotate
from workers.engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y = x W^T + b, with weight [out, in] and, where the model has one, bias [out]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one layer; query, key and value are one matrix, and so are gate and up."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """All weights of a model, and the forward pass over one packed step."""

    spec: ModelSpec
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    rope: RopeTable

    def forward(self, tokens: Tensor, positions: Tensor, attention: AttentionStep) -> Tensor:
        """Last hidden states [tokens, hidden] of packed `tokens` [tokens] at `positions` [tokens]."""
        cos, sin = self.rope.at(positions)
        x = F.embedding(tokens, self.embedding)
        for number, layer in enumerate(self.layers):
            x = x + self._attend(number, layer, self._norm(x, layer.attention_norm), cos, sin, attention)
            x = x + _mlp(layer, self._norm(x, layer.mlp_norm))
        return self._norm(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [rows, vocab] in float32 of the rows that will be sampled, and of no others."""
        return self.head(hidden).float()

    def _attend(
        self, number: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionStep
    ) -> Tensor:
        spec = self.spec
        rows = x.shape[0]
        qkv = layer.qkv(x).view(rows, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        # Query and key heads turn by the same angles: one rotation over both.
        turned = rotate(qkv[:, : spec.heads + spec.kv_heads], cos, sin)
        query, key = turned[:, : spec.heads], turned[:, spec.heads :]
        value = qkv[:, spec.heads + spec.kv_heads :]
        mixed = attention.attend(number, query, key, value)
        return layer.output(mixed.reshape(rows, spec.heads * spec.head_dim))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.spec.norm_eps)


def _mlp(layer: Layer, x: Tensor) -> Tensor:
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return layer.down(F.silu(gate) * up)
