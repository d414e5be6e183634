"""The catalogue's entry for one model, and the interface of its prompt encoder."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.quotas.prices import Prices
from radix_cache.blocks import TOKEN_BYTES, BlockHasher, Hashes, Tokens

TEXT_HASH_PREFIX, CHAT_HASH_PREFIX = b"\xff\xff\xff\xff", b"\xfe\xff\xff\xff"
"""Bytes that are hashed before canonical text: no text contains them, and as a token id they name no token. So
neither token ids nor the prompt of a completion can have the hashes of a chat."""


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prompt as token ids, or as canonical text where the gateway has no tokenizer."""

    tokens: Tokens | None
    text: bytes | bytearray = b""
    """Canonical text, where there are no token ids."""
    count_exact: bool = True
    """Whether the worker will count as many tokens, given an exact encoder; False for a prompt with media."""
    hash_prefix: bytes = TEXT_HASH_PREFIX
    """Hashed before the text: TEXT_HASH_PREFIX or CHAT_HASH_PREFIX."""

    @property
    def token_count(self) -> int:
        """The number of tokens; for text an estimate, TOKEN_BYTES bytes to a token."""
        return len(self.tokens) if self.tokens is not None else -(-len(self.text) // TOKEN_BYTES)

    def hashes(self, hasher: BlockHasher) -> Hashes:
        """Return the chained hashes of the prompt's full blocks."""
        if self.tokens is not None:
            return hasher.of_tokens(self.tokens)
        return hasher.of_text(self.text, self.hash_prefix)


class PromptEncoder(Protocol):
    """Turns a request into its encoded prompts."""

    exact: bool
    """Whether token counts equal the worker's own."""

    def count_answer_text(self, text: str) -> int:
        """Return how many tokens a short text of an answer has, at once: one beyond a few kilobytes takes long."""
        ...

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        """Return the request's prompts, encoded.

        A prompt that exceeds `length_max` by its length in bytes alone is refused here; the caller counts the
        tokens of the others.

        Args:
            request: The decoded request.
            tenant: The tenant that sent it.
            length_max: Tokens that prompt and answer may have together; None where that is unknown.

        Raises:
            BadRequest: The model's chat template refuses the prompt.
            PromptTooLong: A prompt is certainly longer than `length_max`.
            TenantQueueFull: Too many prompts of the tenant are being encoded.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that clients can request."""

    name: str
    """The model's name at the workers."""
    block_size: int
    """Tokens per block of the prefix index."""
    encoder: PromptEncoder
    context_length: int | None
    """Tokens that prompt and answer may have together; None where the worker decides."""
    created: int
    """Seconds since 1970, as clients see them in the list of models."""
    parent: str = ""
    """Of a LoRA adapter that the settings do not name: the model that it changes, which has the same tokens."""
    prices: Prices | None = None
    """None where usage costs nothing."""
    splits: tuple[tuple[str, float], ...] = ()
    """Names and weights of the models among which requests for this one are divided (canaries)."""
    fallbacks: tuple[str, ...] = ()
    """Names of the models that answer where no worker serves this one (gateway/models/model_selection.py)."""
    first_worker_seconds_max: float = 0.0
    """How long requests wait for the model's first worker; 0: not at all."""
    surfaces_sent_as_ids: frozenset[Surface] = frozenset()
    """The APIs on which prompts go to workers as token ids."""
