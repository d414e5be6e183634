"""Prompts to tokens, as the worker will tokenise them.

Chat: the model's chat template, then its tokenizer without special tokens. Completions: the tokenizer with special
tokens, or the ids as they came. Without a tokenizer, canonical text stands in: four bytes count as a token.

A tokenizer reads special tokens before anything else, so a text may be cut at them and its pieces encoded one by
one. A conversation's earlier messages are pieces that were seen before:

    <|im_start|> | user: Hi | <|im_end|> | <|im_start|> | assistant:     each piece looked up, new ones encoded

Pieces are remembered by a keyed hash, never as text, and for each isolation group apart: else the time to a first
token would tell one tenant what another has sent. What is long is encoded in a thread: `encode_batch_fast` lets the
event loop run meanwhile, which `encode` does not. What is very long is rendered and cut in a thread, too, and
encoded in a process (encoder_processes.py). What is so long that it cannot fit is not encoded at all.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import msgspec
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from gateway.concurrency.gil_yield import yield_gil
from gateway.domain.errors import PromptTooLong
from gateway.domain.model import CHAT_MARK, EncodedPrompt
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.media_parts import Media, stand_in
from gateway.tokenization.canonical import canonical
from gateway.tokenization.encoder_child import read_tokenizer
from gateway.tokenization.encoder_processes import EncoderProcesses, NoProcess, Work
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.min_token_count import token_bytes_max
from gateway.tokenization.rendering import rendered
from gateway.tokenization.text_splitter import cutter_of
from radix_cache.blocks import TOKEN_BYTES, Tokens
from workers.chat_template import ChatTemplate, TemplateFailed

Part = TypeVar("Part", bytes, Tokens)
Made = TypeVar("Made")

TEMPLATED = ("tools", "documents", "reasoning_effort", "chat_template_kwargs")
"""Fields that templates mostly put before the messages."""

INLINE_CHARACTERS_MAX = 4096
"""Shorter texts are encoded at once: about a millisecond. A thread costs a tenth of that and a switch."""

_SORTED = msgspec.json.Encoder(order="sorted")

LONG_BYTES = 128 * 1024
"""Of a request: a longer one is made ready in a thread, a millisecond or more."""

JOINED_TOKENS = 64 * 1024
"""Copied in one go."""

PROCESS_CHARACTERS_MIN = 64 * 1024
"""Longer texts are encoded in a process."""


class TextEncoder:
    """For models without a tokenizer here: blocks of canonical text, equal prefix for equal prefix."""

    exact = False

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        if request.surface is Surface.CHAT:
            return [await _made(request, partial(self._chat, request))]
        return [
            EncodedPrompt(tokens=None, text=prompt.encode())
            if isinstance(prompt, str)
            else EncodedPrompt(tokens=_packed(prompt))
            for prompt in request.prompt
        ]

    def _chat(self, request: InferenceRequest) -> EncodedPrompt:
        media = Media(request.prompt)
        before = b"".join(
            name.encode() + bytes(request.fields[name]) for name in TEMPLATED if name in request.fields
        )
        written = canonical if request.size > LONG_BYTES else _SORTED.encode
        text = before + written(media.messages) if before else written(media.messages)
        if len(text) > LONG_BYTES:
            yield_gil()
        if media:
            texts, digests = media.cut(text.decode())
            text = b"".join(_interleaved(map(str.encode, texts), (bytes(stand_in(d)) for d in digests)))
        return EncodedPrompt(tokens=None, text=text, mark=CHAT_MARK)


class TokenizerEncoder:
    """For models whose tokenizer directory is known: the worker's own token ids.

    `key`: a secret seed (64 bits) for the memory of pieces, which takes `memory_bytes_max`, about. `elsewhere`:
    encodes texts in a process, which may be said to be of no more use.
    """

    exact = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        threads: EncoderThreads,
        key: int,
        memory_bytes_max: int,
        elsewhere: Callable[..., Work] | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._tokenizer = tokenizer
        self._template = template
        self._threads = threads
        self._key = key
        self._memory_bytes_max = memory_bytes_max
        self._cut = cutter_of(tokenizer)
        self._token_bytes_max = token_bytes_max(tokenizer)
        self._pieces: OrderedDict[bytes, Tokens] = OrderedDict()
        self._pieces_bytes = 0

    @classmethod
    def from_directory(
        cls,
        directory: Path,
        threads: EncoderThreads,
        key: int,
        memory_bytes_max: int,
        processes: EncoderProcesses | None = None,
    ) -> "TokenizerEncoder":
        """Reads tokenizer.json and, if there is one, the chat template. Raises OSError or ValueError.

        `processes`: None where everything is encoded in this one.
        """
        tokenizer, digest = read_tokenizer(directory)
        try:
            template = ChatTemplate.from_directory(directory)
        except TemplateFailed:
            template = None  # A base model: completions only.
        elsewhere = (
            partial(processes.work, str(directory.resolve()), digest) if processes is not None else None
        )
        return cls(tokenizer, template, threads, key, memory_bytes_max, elsewhere)

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        if request.surface is Surface.CHAT:
            texts, digests = await _made(request, partial(self._texts, request))
            self._check_length(["".join(texts)], request, length_max)
            parts = await self._encode_texts(texts, tenant)
            if not digests:
                return [EncodedPrompt(tokens=parts[0])]
            tokens = _joined(_interleaved(parts, map(stand_in, digests)))
            return [EncodedPrompt(tokens=tokens, counted=False)]
        texts = [prompt for prompt in request.prompt if isinstance(prompt, str)]
        self._check_length(texts, request, length_max)
        encoded = iter(await self._batch(texts, tenant, special=True))
        return [
            EncodedPrompt(tokens=next(encoded) if isinstance(prompt, str) else _packed(prompt))
            for prompt in request.prompt
        ]

    def _texts(self, request: InferenceRequest) -> tuple[list[str], list[bytes]]:
        """What the template makes of a conversation: the texts between its media, and the digests of those."""
        media = Media(request.prompt)
        return media.cut(rendered(request, media.messages, self._template))

    def _check_length(self, texts: Sequence[str], request: InferenceRequest, length_max: int | None) -> None:
        """Refuses what cannot fit, before it costs a second of a thread. Raises PromptTooLong."""
        if length_max is None or self._token_bytes_max is None:
            return
        longest = max(map(_bytes, texts), default=0)
        at_least = -(-longest // self._token_bytes_max)
        output_tokens = request.output_tokens_min
        if at_least + output_tokens > length_max:
            raise PromptTooLong(
                prompt_tokens=at_least, output_tokens=output_tokens, context_length=length_max, exact=False
            )

    async def _encode_texts(self, texts: Sequence[str], tenant: Tenant) -> list[Tokens]:
        """The tokens of each text of a rendered conversation; media stand between them."""
        return [await self._encode_pieces(text, tenant) for text in texts]

    async def _encode_pieces(self, text: str, tenant: Tenant) -> Tokens:
        """The tokens of a rendered text; pieces between special tokens are remembered."""
        if self._cut is None:
            return (await self._batch([text], tenant, special=False))[0]
        if len(text) <= PROCESS_CHARACTERS_MIN:
            pieces, keys = self._pieces_of(text, tenant)
        else:
            pieces, keys = await asyncio.to_thread(self._pieces_of, text, tenant)
        missing = {key: piece for key, piece in zip(keys, pieces, strict=True) if key not in self._pieces}
        found = {key: self._pieces[key] for key in keys if key not in missing}
        if missing:
            encoded = await self._batch(list(missing.values()), tenant, special=False)
            found.update(zip(missing, encoded, strict=True))
        for key in keys:
            self._remember(key, found[key])
        parts = [found[key] for key in keys]
        if sum(map(len, parts)) <= JOINED_TOKENS:
            return _joined(parts)
        return await asyncio.to_thread(_joined, parts)

    def _pieces_of(self, text: str, tenant: Tenant) -> tuple[list[str], list[bytes]]:
        """And under what each is remembered."""
        assert self._cut is not None
        pieces = list(self._cut.pieces(text))
        if len(text) > LONG_BYTES:
            yield_gil()
        seed = xxh3_64_intdigest(tenant.group.encode(), self._key)
        return pieces, [xxh3_128_digest(piece.encode("utf-8", "surrogatepass"), seed) for piece in pieces]

    async def _batch(self, texts: Sequence[str], tenant: Tenant, *, special: bool) -> list[Tokens]:
        def encode() -> list[Tokens]:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
            return [array("I", encoding.ids) for encoding in encodings]

        characters = sum(map(len, texts))
        if characters <= INLINE_CHARACTERS_MAX:
            return encode()
        if characters <= PROCESS_CHARACTERS_MIN or self._elsewhere is None:
            return await self._threads.run(tenant.id, encode)
        work = self._elsewhere(list(texts), special=special)
        try:
            return await self._threads.run(tenant.id, partial(_elsewhere_or_here, work, encode))
        except asyncio.CancelledError:
            work.abandon()
            raise

    def _remember(self, key: bytes, tokens: Tokens) -> None:
        if key in self._pieces:
            self._pieces.move_to_end(key)
            return
        self._pieces[key] = tokens
        self._pieces_bytes += _memory(tokens)
        while self._pieces_bytes > self._memory_bytes_max:
            self._pieces_bytes -= _memory(self._pieces.popitem(last=False)[1])


async def _made(request: InferenceRequest, make: Callable[[], Made]) -> Made:
    """In a thread, if the request is long."""
    return make() if request.size <= LONG_BYTES else await asyncio.to_thread(make)


def _elsewhere_or_here(work: Work, here: Callable[[], list[Tokens]]) -> list[Tokens]:
    try:
        return work.tokens()
    except NoProcess:
        return here() if work.wanted else []


def _joined(parts: Iterable[Tokens]) -> Tokens:
    """Slice by slice: a call keeps the interpreter until it returns."""
    tokens: Tokens = array("I")
    for part in parts:
        for at in range(0, len(part), JOINED_TOKENS):
            tokens.extend(part[at : at + JOINED_TOKENS] if len(part) > JOINED_TOKENS else part)
    return tokens


def _packed(prompt: Sequence[int]) -> Tokens:
    return prompt if isinstance(prompt, array) else array("I", prompt)


def _interleaved(texts: Iterable[Part], media: Iterable[Part]) -> Iterator[Part]:
    """A text, a medium, a text, ...: there is one text more than there are media."""
    for text, medium in zip_longest(texts, media):
        yield text
        if medium is not None:
            yield medium


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _memory(tokens: Tokens) -> int:
    """Bytes of one remembered piece, with its key and its place in the dictionary."""
    return len(tokens) * TOKEN_BYTES + 250
