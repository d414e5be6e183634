"""Model: one entry of the catalogue, and what turns its requests into tokens."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.quotas.prices import Prices
from radix_cache.blocks import TOKEN_BYTES, BlockHasher, Hashes, Tokens

TEXT_MARK, CHAT_MARK = b"\xff\xff\xff\xff", b"\xfe\xff\xff\xff"
"""What canonical text is hashed after: bytes that no text has, and as a token id none that exists. So neither
tokens nor the prompt of a completion can look like a chat."""


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prompt: token ids, or canonical text where there is no tokenizer.

    `counted`: the number of tokens is the worker's own, where the encoder is exact; not so with media in it.
    `mark`: what kind of text it is.
    """

    tokens: Tokens | None
    text: bytes | bytearray = b""
    counted: bool = True
    mark: bytes = TEXT_MARK

    def __len__(self) -> int:
        """Tokens; estimated for text."""
        return len(self.tokens) if self.tokens is not None else -(-len(self.text) // TOKEN_BYTES)

    def hashes(self, hasher: BlockHasher) -> Hashes:
        if self.tokens is not None:
            return hasher.of_tokens(self.tokens)
        return hasher.of_text(self.text, self.mark)


class PromptEncoder(Protocol):
    """Turns a request into its prompts. `exact`: token counts are those of the worker."""

    exact: bool

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        """One entry a prompt. `length_max`: tokens that prompt and answer may have together, where that is known.

        Raises BadRequest for a prompt that the model's template refuses, PromptTooLong for one of which the length
        in bytes says that it cannot fit (the caller counts the tokens of the others), TenantQueueFull for a tenant
        of which too many prompts are being encoded.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that can be asked for.

    `name`: what workers call it. `block_size`: tokens per index block. `context_length`: None where the worker
    decides. `created`: seconds since 1970, as clients are told. `prices`: None where it costs nothing. `splits`:
    names and weights of the models that its requests are divided among; `fallbacks`: names of those that answer
    where nobody serves it (dispatch/choices). `hands_tokens`: surfaces of which the prompts go to workers as ids.
    """

    name: str
    block_size: int
    encoder: PromptEncoder
    context_length: int | None
    created: int
    prices: Prices | None = None
    splits: tuple[tuple[str, float], ...] = ()
    fallbacks: tuple[str, ...] = ()
    hands_tokens: frozenset[Surface] = frozenset()
