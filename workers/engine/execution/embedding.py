"""Embeddings: the last hidden state of a text's last token, of length one.

That is how decoder-only embedding models are pooled; of any other causal model it is what its next token is chosen
by. A text is computed by chunks, so that whoever generates has its turn between them, and leaves nothing in the
KV store: keys and values live as long as the text is computed.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engine.model.decoder import Decoder


class Embedder:
    """Makes embeddings with a decoder. Only the engine's thread computes."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self._decoder = decoder
        self._device = device

    def begin(self, tokens: Sequence[int]) -> "TextEmbedding":
        """Of a text that has at least one token."""
        return TextEmbedding(self._decoder, self._device, tokens)


class TextEmbedding:
    """One text. `vector` is there once `done`."""

    def __init__(self, decoder: Decoder, device: torch.device, tokens: Sequence[int]) -> None:
        self.vector: list[float] = []
        self._decoder = decoder
        self._tokens = torch.tensor(tokens, dtype=torch.long, device=device)
        self._computed = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def done(self) -> bool:
        return bool(self.vector)

    def advance(self, tokens: int) -> None:
        """Computes so many tokens more, or what is left."""
        start = self._computed
        end = min(start + tokens, len(self._tokens))
        positions = torch.arange(start, end, device=self._tokens.device)
        with torch.inference_mode():
            hidden = self._decoder.forward(
                self._tokens[start:end],
                positions,
                _Causal(self._decoder, self._keys, self._values, positions),
            )
            self._computed = end
            if end == len(self._tokens):
                self.vector = F.normalize(hidden[-1].float(), dim=0).tolist()
                self._keys, self._values = [], []


class _Causal:
    """See AttentionStep: one sequence, whose keys and values are all at hand, [tokens, kv_heads, head_dim]."""

    def __init__(self, decoder: Decoder, keys: list[Tensor], values: list[Tensor], positions: Tensor) -> None:
        self._windows = decoder.spec.windows
        self._keys = keys
        self._values = values
        self._rows = positions[:, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if layer < len(self._keys):
            key, value = torch.cat((self._keys[layer], key)), torch.cat((self._values[layer], value))
            self._keys[layer], self._values[layer] = key, value
        else:
            self._keys.append(key)
            self._values.append(value)
        columns = torch.arange(key.shape[0], device=key.device)[None, :]
        seen, window = columns <= self._rows, self._windows[layer]
        if window is not None:
            seen = seen & (columns > self._rows - window)
        group = query.shape[1] // key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query.transpose(0, 1),
            key.transpose(0, 1).repeat_interleave(group, dim=0),
            value.transpose(0, 1).repeat_interleave(group, dim=0),
            attn_mask=seen,
        )
        return mixed.transpose(0, 1)
