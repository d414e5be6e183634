"""Encodes prompts of models without a tokenizer as canonical text, in place of tokens: four bytes count as one."""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import TypeVar

import msgspec

from gateway.concurrency.gil_yield import yield_gil
from gateway.domain.model import CHAT_HASH_PREFIX, EncodedPrompt
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.media_parts import ChatMedia, may_have_media, media_tokens
from gateway.tokenization.canonical_json import canonical_json
from radix_cache.blocks import TOKEN_BYTES, Tokens

Part = TypeVar("Part", bytes, Tokens)
Result = TypeVar("Result")

CANONICAL_FIELDS = ("tools", "documents", "reasoning_effort", "chat_template_kwargs")
"""Fields of a chat request that are part of its canonical text, before the messages, as templates render them.

With a tokenizer the template gets all fields of FIELD_TYPES (chat_rendering.py)."""

LONG_BYTES = 128 * 1024
"""Prompts of longer requests are rendered in a thread, since rendering takes a millisecond or more."""

_SORTED = msgspec.json.Encoder(order="sorted")


class TextEncoder:
    """Encodes prompts of models without a tokenizer as canonical text, so that equal prefixes give equal blocks."""

    exact = False

    def count_answer_text(self, text: str) -> int:
        """Return the token count of a text, by its length in bytes."""
        return -(-utf8_length(text) // TOKEN_BYTES)

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        """Return each prompt of the request as canonical text, or as the token ids that the client sent."""
        if request.surface is Surface.CHAT:
            if request.body_bytes <= LONG_BYTES:
                return [self._chat(request)]
            return [await run_off_loop_if_long(request, partial(self._chat, request))]
        return [
            EncodedPrompt(tokens=None, text=prompt.encode())
            if isinstance(prompt, str)
            else EncodedPrompt(tokens=as_array(prompt))
            for prompt in request.prompt
        ]

    def _chat(self, request: InferenceRequest) -> EncodedPrompt:
        media = ChatMedia(request.prompt) if may_have_media(request.prompt) else None
        before = b""
        for name in CANONICAL_FIELDS:
            if name in request.fields:
                before += name.encode() + bytes(request.fields[name])
        written = canonical_json if request.body_bytes > LONG_BYTES else _SORTED.encode
        text = before + written(request.prompt if media is None else media.messages)
        if len(text) > LONG_BYTES:
            yield_gil()
        if media:
            texts, digests = media.split(text.decode())
            text = b"".join(interleave(map(str.encode, texts), (bytes(media_tokens(d)) for d in digests)))
        return EncodedPrompt(tokens=None, text=text, hash_prefix=CHAT_HASH_PREFIX)


async def run_off_loop_if_long(request: InferenceRequest, make: Callable[[], Result]) -> Result:
    """Return what `make` returns, run in a thread if the request is long."""
    return make() if request.body_bytes <= LONG_BYTES else await asyncio.to_thread(make)


def as_array(prompt: Sequence[int]) -> Tokens:
    """Return token ids that the client sent as an array."""
    return prompt if isinstance(prompt, array) else array("I", prompt)


def interleave(texts: Iterable[Part], media: Iterable[Part]) -> Iterator[Part]:
    """Yield texts and media in turn; there is one text more than there are media."""
    for text, medium in zip_longest(texts, media):
        yield text
        if medium is not None:
            yield medium


def utf8_length(text: str) -> int:
    """Return the length of a text in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
