"""Prompts to tokens, as the worker will tokenise them.

Chat: the model's chat template, then its tokenizer without special tokens. Completions: the tokenizer with special
tokens, or the ids as they came. Without a tokenizer, canonical text stands in: four bytes count as a token.

A tokenizer reads special tokens before anything else, so a text may be cut at them and its pieces encoded one by
one. A conversation's earlier messages are pieces that were seen before:

    <|im_start|> | user: Hi | <|im_end|> | <|im_start|> | assistant:     each piece looked up, new ones encoded

Pieces are remembered by a keyed hash, never as text, and for each isolation group apart: else the time to a first
token would tell one tenant what another has sent. What is long is encoded in a thread: `encode_batch_fast` lets the
event loop run meanwhile, which `encode` does not. What is so long that it cannot fit is not encoded at all.
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import TypeVar

import msgspec
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from gateway.dispatch.encoder_threads import EncoderThreads
from gateway.dispatch.media import Media, stand_in
from gateway.dispatch.rendering import rendered
from gateway.dispatch.token_bytes import token_bytes_max
from gateway.errors import PromptTooLong
from gateway.model import CHAT_MARK, EncodedPrompt
from gateway.request import InferenceRequest, Surface
from gateway.tenants.tenant import Tenant
from radix_cache.blocks import TOKEN_BYTES, Tokens
from workers.chat_template import ChatTemplate, TemplateFailed

Part = TypeVar("Part", bytes, Tokens)

TEMPLATED = ("tools", "documents", "reasoning_effort", "chat_template_kwargs")
"""Fields that templates mostly put before the messages."""

INLINE_CHARACTERS_MAX = 4096
"""Shorter texts are encoded at once: about a millisecond. A thread costs a tenth of that and a switch."""


class TextEncoder:
    """For models without a tokenizer here: blocks of canonical text, equal prefix for equal prefix."""

    exact = False

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        if request.surface is Surface.CHAT:
            media = Media(request.prompt)
            before = b"".join(
                name.encode() + bytes(request.fields[name]) for name in TEMPLATED if name in request.fields
            )
            text = before + msgspec.json.encode(media.messages, order="sorted")
            if media:
                texts, digests = media.cut(text.decode())
                text = b"".join(_interleaved(map(str.encode, texts), (bytes(stand_in(d)) for d in digests)))
            return [EncodedPrompt(tokens=None, text=text, mark=CHAT_MARK)]
        return [
            EncodedPrompt(tokens=None, text=prompt.encode())
            if isinstance(prompt, str)
            else EncodedPrompt(tokens=array("I", prompt))
            for prompt in request.prompt
        ]


def read_tokenizer(directory: Path) -> Tokenizer:
    """From its tokenizer.json. Raises ValueError."""
    try:
        return Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as err:  # tokenizers raises nothing more precise
        raise ValueError(f"{directory / 'tokenizer.json'} cannot be read: {err}") from err


class TokenizerEncoder:
    """For models whose tokenizer directory is known: the worker's own token ids.

    `key`: a secret seed (64 bits) for the memory of pieces, which takes `memory_bytes_max`, about.
    """

    exact = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        threads: EncoderThreads,
        key: int,
        memory_bytes_max: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._threads = threads
        self._key = key
        self._memory_bytes_max = memory_bytes_max
        self._cut = _cutter(tokenizer)
        self._token_bytes_max = token_bytes_max(tokenizer)
        self._pieces: OrderedDict[bytes, Tokens] = OrderedDict()
        self._pieces_bytes = 0

    @classmethod
    def from_directory(
        cls, directory: Path, threads: EncoderThreads, key: int, memory_bytes_max: int
    ) -> "TokenizerEncoder":
        """Reads tokenizer.json and, if there is one, the chat template. Raises OSError or ValueError."""
        tokenizer = read_tokenizer(directory)
        # Some files ask for a length of their own; a prompt is as long as it is.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        try:
            template = ChatTemplate.from_directory(directory)
        except TemplateFailed:
            template = None  # A base model: completions only.
        return cls(tokenizer, template, threads, key, memory_bytes_max)

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        if request.surface is Surface.CHAT:
            media = Media(request.prompt)
            texts, digests = media.cut(rendered(request, media.messages, self._template))
            self._check_length(["".join(texts)], request, length_max)
            tokens = await self._encode_texts(texts, tenant)
            return [
                EncodedPrompt(
                    tokens=array("I", chain.from_iterable(_interleaved(tokens, map(stand_in, digests))))
                    if media
                    else tokens[0],
                    counted=not media,
                )
            ]
        texts = [prompt for prompt in request.prompt if isinstance(prompt, str)]
        self._check_length(texts, request, length_max)
        encoded = iter(await self._batch(texts, tenant, special=True))
        return [
            EncodedPrompt(tokens=next(encoded) if isinstance(prompt, str) else array("I", prompt))
            for prompt in request.prompt
        ]

    def _check_length(self, texts: Sequence[str], request: InferenceRequest, length_max: int | None) -> None:
        """Refuses what cannot fit, before it costs a second of a thread. Raises PromptTooLong."""
        if length_max is None or self._token_bytes_max is None:
            return
        longest = max(map(_bytes, texts), default=0)
        at_least = -(-longest // self._token_bytes_max)
        output_tokens = request.output_tokens_max or int(request.generates)
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
        pieces = [piece for piece in self._cut.split(text) if piece]
        seed = xxh3_64_intdigest(tenant.group.encode(), self._key)
        keys = [xxh3_128_digest(piece.encode("utf-8", "surrogatepass"), seed) for piece in pieces]
        missing = {key: piece for key, piece in zip(keys, pieces, strict=True) if key not in self._pieces}
        found = {key: self._pieces[key] for key in keys if key not in missing}
        if missing:
            encoded = await self._batch(list(missing.values()), tenant, special=False)
            found.update(zip(missing, encoded, strict=True))
        tokens: Tokens = array("I")
        for key in keys:
            tokens.extend(found[key])
            self._remember(key, found[key])
        return tokens

    async def _batch(self, texts: Sequence[str], tenant: Tenant, *, special: bool) -> list[Tokens]:
        def encode() -> list[Tokens]:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
            return [array("I", encoding.ids) for encoding in encodings]

        if sum(map(len, texts)) <= INLINE_CHARACTERS_MAX:
            return encode()
        return await self._threads.run(tenant.id, encode)

    def _remember(self, key: bytes, tokens: Tokens) -> None:
        if key in self._pieces:
            self._pieces.move_to_end(key)
            return
        self._pieces[key] = tokens
        self._pieces_bytes += _memory(tokens)
        while self._pieces_bytes > self._memory_bytes_max:
            self._pieces_bytes -= _memory(self._pieces.popitem(last=False)[1])


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


def _cutter(tokenizer: Tokenizer) -> "re.Pattern[str] | None":
    """Where a text may be cut: at special tokens that take no neighbouring blanks with them.

    None if pieces would be encoded differently from the whole, as with tokenizers that put a blank before the
    first word of a text: then nothing is cut.
    """
    special = [
        token.content
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and token.content and not (token.lstrip or token.rstrip or token.single_word)
    ]
    if not special:
        return None
    longest_first = sorted(special, key=len, reverse=True)
    cutter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
    for sample in (" user\nIs it?  Yes. ", "assistant\n\n\tword 12 Ωmega"):
        whole = sample.join(special[:3]) + sample
        pieces = [piece for piece in cutter.split(whole) if piece]
        encodings = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]
        apart = [token for encoding in encodings for token in encoding.ids]
        if apart != tokenizer.encode(whole, add_special_tokens=False).ids:
            return None
    return cutter
