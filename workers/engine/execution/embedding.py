"""Embeddings: the last hidden state of a text's last token, scaled to length one.

That is how decoder-only embedding models are pooled; of any other causal model it is the state that the next token
is predicted from. A text is computed in chunks, so that generation steps run between them. It leaves nothing in the
KV store: its keys and values are kept only while it is computed.
"""

import logging
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engine.errors import StepFailed
from workers.engine.model.decoder import Decoder
from workers.engine.model.lora import LoraAdapter, LoraGroup

_log = logging.getLogger("radixgate.engine")


class Embedder:
    """Computes embeddings with a decoder. Only the engine's thread may call it."""

    def __init__(
        self, decoder: Decoder, device: torch.device, loras: Mapping[str, LoraAdapter] | None = None
    ) -> None:
        self._decoder = decoder
        self._device = device
        self._loras = loras or {}

    def begin(self, tokens: Sequence[int], lora: str = "") -> "TextEmbedding":
        """Return the embedding of a text of at least one token, not computed yet.

        `lora`: the name of the LoRA adapter that computes it; empty: the model itself.
        """
        groups = (LoraGroup(adapter=self._loras[lora], rows=None),) if lora else ()
        return TextEmbedding(self._decoder, self._device, tokens, groups)


class TextEmbedding:
    """The embedding of one text, computed in chunks; `vector` is set once `done`."""

    def __init__(
        self,
        decoder: Decoder,
        device: torch.device,
        tokens: Sequence[int],
        groups: Sequence[LoraGroup] = (),
    ) -> None:
        self.vector: list[float] = []
        self._decoder = decoder
        self._groups = groups
        self._tokens = torch.tensor(tokens, dtype=torch.long, device=device)
        self._computed = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def done(self) -> bool:
        """Whether the whole text is computed."""
        return bool(self.vector)

    def advance(self, tokens: int) -> None:
        """Compute the next `tokens` tokens, or as many as are left.

        Raises:
            StepFailed: the computation failed; this text has no result, and others can have one.
        """
        try:
            self._advance(tokens)
        except Exception as error:
            self._keys, self._values = [], []
            _log.exception("the computation of an embedding failed")
            raise StepFailed("the computation of this embedding failed") from error

    def _advance(self, tokens: int) -> None:
        start = self._computed
        end = min(start + tokens, len(self._tokens))
        positions = torch.arange(start, end, device=self._tokens.device)
        with torch.inference_mode():
            hidden = self._decoder.forward(
                self._tokens[start:end],
                positions,
                _CausalAttentionStep(self._decoder, self._keys, self._values, positions),
                self._groups,
            )
            self._computed = end
            if end == len(self._tokens):
                self.vector = F.normalize(hidden[-1].float(), dim=0).tolist()
                self._keys, self._values = [], []


class _CausalAttentionStep:
    """An AttentionStep for one sequence with all of its keys and values in lists, [tokens, kv_heads, head_dim]."""

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
