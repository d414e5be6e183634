"""The decoder of all families: Llama, Qwen2, Qwen3 and Mistral differ only in biases, head norms and windows.

    tokens -> embedding -> [ + attention(norm x) ; + mlp(norm x) ] x layers -> norm -> head (only sampled rows)

The batch is ragged and flat: the rows of all sequences follow each other, [tokens, hidden], and only the attention
step has which row belongs to which sequence. It is passed as an argument, and nothing is global: any number of
decoders can share a process.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engine.attention.attention_backend import AttentionStep
from workers.engine.checkpoint.model_spec import ModelSpec
from workers.engine.model.linear import Projection
from workers.engine.model.lora import LoraGroup, LoraLayer
from workers.engine.model.rope import RopeTable, rotate

Updates = Sequence[tuple[LoraLayer, Tensor | None]]
"""The LoRA updates of one layer, each with the rows that it changes; None: all rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """The weights of one decoder layer; query, key and value are one matrix, and so are gate and up."""

    attention_norm: Tensor
    qkv: Projection
    output: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection
    query_norm: Tensor | None = None
    """[head_dim], for models that normalise every query and key head; else None."""
    key_norm: Tensor | None = None
    """[head_dim], as `query_norm`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder-only transformer: its weights, and the forward pass over one packed step."""

    spec: ModelSpec
    embedding: Tensor
    """[vocab, hidden]."""
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    head: Projection
    rope: RopeTable

    @property
    def linear_bytes(self) -> int:
        """The bytes of the layers' matrices, which quantisation reduces."""
        return sum(
            part.num_bytes
            for layer in self.layers
            for part in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: AttentionStep,
        lora: Sequence[LoraGroup] = (),
    ) -> Tensor:
        """Return the last hidden states [tokens, hidden] of packed `tokens` [tokens] at `positions` [tokens].

        `lora` has the rows that LoRA adapters change.
        """
        cos, sin = self.rope.at(positions)
        x = F.embedding(tokens, self.embedding)
        for number, layer in enumerate(self.layers):
            updates = [(group.adapter.layers[number], group.rows) for group in lora]
            normed = self._norm(x, layer.attention_norm)
            x = x + self._attend(number, layer, normed, cos, sin, attention, updates)
            x = x + _mlp(layer, self._norm(x, layer.mlp_norm), updates)
        return self._norm(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [rows, vocab] in float32 for the hidden states [rows, hidden] of sampled rows."""
        return self.head(hidden).float()

    def _attend(
        self,
        number: int,
        layer: DecoderLayer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: AttentionStep,
        updates: Updates,
    ) -> Tensor:
        spec = self.spec
        rows = x.shape[0]
        projected = layer.qkv(x)
        for update, changed in updates:
            update.qkv.add(projected, x, changed)
        qkv = projected.view(rows, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        unrotated = qkv[:, : spec.heads + spec.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = unrotated[:, : spec.heads], unrotated[:, spec.heads :]
            unrotated = torch.cat(
                (self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)), dim=1
            )
        # Query and key heads rotate by the same angles: one rotation over both.
        rotated = rotate(unrotated, cos, sin)
        query, key = rotated[:, : spec.heads], rotated[:, spec.heads :]
        value = qkv[:, spec.heads + spec.kv_heads :]
        mixed = attention.attend(number, query, key, value).reshape(rows, spec.heads * spec.head_dim)
        output = layer.output(mixed)
        for update, changed in updates:
            update.output.add(output, mixed, changed)
        return output

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.spec.norm_eps)


def _mlp(layer: DecoderLayer, x: Tensor, updates: Updates) -> Tensor:
    gate_up = layer.gate_up(x)
    for update, rows in updates:
        update.gate_up.add(gate_up, x, rows)
    gate, up = gate_up.chunk(2, dim=-1)
    inner = F.silu(gate) * up
    output = layer.down(inner)
    for update, rows in updates:
        update.down.add(output, inner, rows)
    return output
