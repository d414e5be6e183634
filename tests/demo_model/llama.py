"""A Llama for training, with the names of Hugging Face's checkpoints for its weights.

It computes in float32 over whole rows of tokens, without a KV cache: the engine is what serves the trained model.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engine.tiny_checkpoint import TinyCheckpointSettings

EMBEDDING = "model.embed_tokens.weight"


class TrainedLlama:
    """The weights of a Llama with a tied head, by name, and its forward pass."""

    def __init__(self, shape: TinyCheckpointSettings) -> None:
        self.shape = shape
        self.weights: dict[str, Tensor] = {}
        hidden, inner, keys = shape.hidden, shape.intermediate, shape.kv_heads * shape.head_dim
        self._matrix(EMBEDDING, shape.vocab, hidden, deviation=0.02)
        into_stream = 1 / math.sqrt(2 * shape.layers)
        for number in range(shape.layers):
            prefix = f"model.layers.{number}."
            self._scale(prefix + "input_layernorm.weight")
            self._matrix(prefix + "self_attn.q_proj.weight", hidden, hidden)
            self._matrix(prefix + "self_attn.k_proj.weight", keys, hidden)
            self._matrix(prefix + "self_attn.v_proj.weight", keys, hidden)
            self._matrix(prefix + "self_attn.o_proj.weight", hidden, hidden, factor=into_stream)
            self._scale(prefix + "post_attention_layernorm.weight")
            self._matrix(prefix + "mlp.gate_proj.weight", inner, hidden)
            self._matrix(prefix + "mlp.up_proj.weight", inner, hidden)
            self._matrix(prefix + "mlp.down_proj.weight", hidden, inner, factor=into_stream)
        self._scale("model.norm.weight")

    @property
    def hidden_matrices(self) -> list[Tensor]:
        """The matrices of the layers."""
        return [weight for name, weight in self.weights.items() if weight.dim() == 2 and name != EMBEDDING]

    @property
    def other_weights(self) -> list[Tensor]:
        """The embedding, which is the head too, and the scales of the norms."""
        return [weight for name, weight in self.weights.items() if weight.dim() == 1 or name == EMBEDDING]

    def states(self, tokens: Tensor) -> Tensor:
        """Return the last hidden states [rows, length, hidden] of `tokens` [rows, length]."""
        weights, shape = self.weights, self.shape
        x = F.embedding(tokens, weights[EMBEDDING])
        turn = _rotation(tokens.shape[1], shape.head_dim)
        for number in range(shape.layers):
            prefix = f"model.layers.{number}."
            near = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
            x = x + self._attention(near, _norm(x, near["input_layernorm.weight"]), turn)
            x = x + _mlp(near, _norm(x, near["post_attention_layernorm.weight"]))
        return _norm(x, weights["model.norm.weight"])

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [n, vocab] of `states` [n, hidden]."""
        return F.linear(states, self.weights[EMBEDDING])

    def _attention(self, near: Mapping[str, Tensor], x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        shape, (rows, length, _) = self.shape, x.shape

        def heads(name: str, count: int) -> Tensor:
            made = F.linear(x, near[f"self_attn.{name}.weight"])
            return made.view(rows, length, count, shape.head_dim).transpose(1, 2)

        query, key = (
            _rotate(heads(name, count), turn)
            for name, count in (("q_proj", shape.heads), ("k_proj", shape.kv_heads))
        )
        mixed = F.scaled_dot_product_attention(
            query, key, heads("v_proj", shape.kv_heads), is_causal=True, enable_gqa=True
        )
        return F.linear(mixed.transpose(1, 2).reshape(x.shape), near["self_attn.o_proj.weight"])

    def _matrix(
        self, name: str, outputs: int, inputs: int, *, deviation: float | None = None, factor: float = 1.0
    ) -> None:
        scale = deviation if deviation is not None else factor / math.sqrt(inputs)
        self.weights[name] = (torch.randn(outputs, inputs) * scale).requires_grad_()

    def _scale(self, name: str) -> None:
        self.weights[name] = torch.ones(self.shape.hidden).requires_grad_()


def _rotation(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [length, head_dim] of the rotary embedding, as Llama applies it."""
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(length)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat((-second, first), dim=-1) * turn[1]


def _norm(x: Tensor, scale: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), scale, 1e-6)


def _mlp(near: Mapping[str, Tensor], x: Tensor) -> Tensor:
    gate, up = (F.linear(x, near[f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    return F.linear(F.silu(gate) * up, near["mlp.down_proj.weight"])
