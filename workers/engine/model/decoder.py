"""The one decoder: Llama, Qwen2, Qwen3 and Mistral differ only in biases, in norms of single heads, and in windows.

    tokens -> embedding -> [ + attention(norm x) ; + mlp(norm x) ] x layers -> norm -> head (only sampled rows)

The batch is ragged and flat: rows of all sequences stand one after another, [tokens, hidden], and only attention
knows whose row is whose. What it needs is handed down as an argument: any number of decoders can share a process.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionStep
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.model.linear import Projection
from workers.engine.model.rope import RopeTable, rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """The weights of one layer; query, key and value are one matrix, and so are gate and up."""

    attention_norm: Tensor
    qkv: Projection
    output: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection
    query_norm: Tensor | None = None
    """[head_dim], for models that normalise every query and key head."""
    key_norm: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """All weights of a model, and the forward pass over one packed step."""

    spec: ModelSpec
    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    head: Projection
    rope: RopeTable

    @property
    def linear_bytes(self) -> int:
        """Memory of the layers' matrices: what quantisation makes smaller."""
        return sum(
            part.num_bytes
            for layer in self.layers
            for part in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )

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
        self, number: int, layer: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionStep
    ) -> Tensor:
        spec = self.spec
        rows = x.shape[0]
        qkv = layer.qkv(x).view(rows, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        unturned = qkv[:, : spec.heads + spec.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = unturned[:, : spec.heads], unturned[:, spec.heads :]
            unturned = torch.cat(
                (self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)), dim=1
            )
        # Query and key heads turn by the same angles: one rotation over both.
        turned = rotate(unturned, cos, sin)
        query, key = turned[:, : spec.heads], turned[:, spec.heads :]
        value = qkv[:, spec.heads + spec.kv_heads :]
        mixed = attention.attend(number, query, key, value)
        return layer.output(mixed.reshape(rows, spec.heads * spec.head_dim))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.spec.norm_eps)


def _mlp(layer: DecoderLayer, x: Tensor) -> Tensor:
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return layer.down(F.silu(gate) * up)
