"""Encodes prompts with the model's own tokenizer: into the token ids that the worker will compute.

Chat: the model's chat template, then its tokenizer without special tokens. Completions: the tokenizer with special
tokens, or the token ids that the client sent. (text_encoder.py encodes where there is no tokenizer.)

A tokenizer splits a text at special tokens first, so the pieces between them can be encoded one by one. The earlier
messages of a conversation are pieces that were encoded before:

    <|im_start|> | user: Hi | <|im_end|> | <|im_start|> | assistant:     each piece looked up, new ones encoded

The tokens of a piece are cached (token_cache.py), separately for each isolation group.

Every text is encoded by piecewise_encoder.py: a short one on the event loop, a longer one in a thread, a very long
one in a process (encoder_processes.py), and its conversation is rendered and split in a thread. A text that is
certain to be too long by its length in bytes is not encoded.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from gateway.concurrency.gil_yield import yield_gil
from gateway.domain.errors import BadRequest, PromptTooLong
from gateway.domain.model import EncodedPrompt
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.media_parts import ChatMedia, media_tokens
from gateway.tokenization.chat_rendering import render_chat
from gateway.tokenization.encoder_processes import EncoderProcesses, EncoderUnavailable, EncodingJob
from gateway.tokenization.encoder_threads import EncoderThreads
from gateway.tokenization.min_token_count import token_bytes_max
from gateway.tokenization.piecewise_encoder import (
    TOKENS_MAX,
    EncodingFailed,
    PiecewiseEncoder,
    TooManyTokens,
)
from gateway.tokenization.text_encoder import (
    LONG_BYTES,
    as_array,
    interleave,
    run_off_loop_if_long,
    utf8_length,
)
from gateway.tokenization.text_splitter import splitter_for
from gateway.tokenization.token_cache import TokenCache
from gateway.tokenization.tokenizer_file import read_tokenizer
from radix_cache.blocks import Tokens
from workers.chat_template import ChatTemplate, TemplateFailed

INLINE_CHARACTERS_MAX = 4096
"""Shorter texts are encoded on the event loop, in about a millisecond; a thread costs a tenth of that to start."""

JOINED_TOKENS = 64 * 1024
"""The tokens that are copied in one call."""

PROCESS_CHARACTERS_MIN = 64 * 1024
"""Longer texts are encoded in a process."""


class TokenizerEncoder:
    """Encodes prompts with the model's own tokenizer: the token ids are those of the worker, but for media.

    Images and other media of a conversation get placeholder tokens, and their number is an estimate.

    Args:
        tokenizer: The tokenizer of the model.
        template: The chat template; None for a base model, which serves completions only.
        threads: The threads that encode long texts.
        key: A secret seed (64 bits) for the hashes under which pieces are cached.
        memory_bytes_max: About how much memory the cache of pieces may take.
        process_job: Creates the job of encoding texts in a process; None where no processes are used.
    """

    exact = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        threads: EncoderThreads,
        key: int,
        memory_bytes_max: int,
        process_job: Callable[..., EncodingJob] | None = None,
    ) -> None:
        self._process_job = process_job
        self._encoder = PiecewiseEncoder(tokenizer)
        self._template = template
        self._threads = threads
        self._key = key
        self._splitter = splitter_for(tokenizer)
        self._token_bytes_max = token_bytes_max(tokenizer)
        self._pieces = TokenCache(memory_bytes_max)

    @classmethod
    def from_directory(
        cls,
        directory: Path,
        threads: EncoderThreads,
        key: int,
        memory_bytes_max: int,
        processes: EncoderProcesses | None = None,
    ) -> "TokenizerEncoder":
        """Read tokenizer.json and, if there is one, the chat template. Raises OSError or ValueError.

        Args:
            directory: The directory of the tokenizer.
            threads: The threads that encode long texts.
            key: A secret seed (64 bits) for the hashes under which pieces are cached.
            memory_bytes_max: About how much memory the cache of pieces may take.
            processes: Encode very long texts; None where all texts are encoded in the gateway's own process.
        """
        tokenizer, digest = read_tokenizer(directory)
        try:
            template = ChatTemplate.from_directory(directory)
        except TemplateFailed:
            template = None  # A base model: completions only.
        process_job = (
            partial(processes.job, str(directory.resolve()), digest) if processes is not None else None
        )
        return cls(tokenizer, template, threads, key, memory_bytes_max, process_job)

    def count_answer_text(self, text: str) -> int:
        """Return the token count of a text; that of a longer text is extrapolated from its beginning.

        It is 0 if the tokenizer cannot encode the text.
        """
        beginning = text[:INLINE_CHARACTERS_MAX]
        if not beginning:
            return 0
        try:
            (ids,) = self._encoder.encode(
                [beginning], special=False, tokens_max=len(beginning), together=True
            )
        except (EncodingFailed, TooManyTokens):
            return 0
        return -(-len(ids) * len(text) // len(beginning))

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        """Return the token ids of each prompt. Raises BadRequest, PromptTooLong and TenantQueueFull."""
        if request.surface is Surface.CHAT:
            texts, digests = await run_off_loop_if_long(request, partial(self._render, request))
            bound = _TokenBound(request, length_max)
            self._refuse_too_long(["".join(texts)], bound)
            parts = await self._encode_texts(texts, tenant, bound)
            if not digests:
                return [EncodedPrompt(tokens=parts[0])]
            tokens = _concatenate(interleave(parts, map(media_tokens, digests)))
            return [EncodedPrompt(tokens=tokens, count_exact=False)]
        texts = [prompt for prompt in request.prompt if isinstance(prompt, str)]
        bound = _TokenBound(request, length_max)
        self._refuse_too_long(texts, bound)
        encoded = iter(await self._encode_batch(texts, tenant, bound, special=True))
        return [
            EncodedPrompt(tokens=next(encoded) if isinstance(prompt, str) else as_array(prompt))
            for prompt in request.prompt
        ]

    def _render(self, request: InferenceRequest) -> tuple[list[str], list[bytes]]:
        """Render a conversation: return the texts between its media, and the digests of the media."""
        media = ChatMedia(request.prompt)
        return media.split(render_chat(request, media.messages, self._template))

    def _refuse_too_long(self, texts: Sequence[str], bound: "_TokenBound") -> None:
        """Refuse a prompt that cannot fit, before a thread spends a second on it. Raises PromptTooLong."""
        if self._token_bytes_max is None:
            return
        longest = max(map(utf8_length, texts), default=0)
        at_least = -(-longest // self._token_bytes_max)
        if at_least > bound.tokens_max:
            raise bound.exceeded(at_least)

    async def _encode_texts(self, texts: Sequence[str], tenant: Tenant, bound: "_TokenBound") -> list[Tokens]:
        """Return the tokens of each text of a rendered conversation; media stand between the texts."""
        return [await self._encode_pieces(text, tenant, bound) for text in texts]

    async def _encode_pieces(self, text: str, tenant: Tenant, bound: "_TokenBound") -> Tokens:
        """Return the tokens of a rendered text; the tokens of its pieces are cached."""
        if self._splitter is None:
            return (await self._encode_batch([text], tenant, bound, special=False))[0]
        if len(text) <= PROCESS_CHARACTERS_MIN:
            pieces, keys = self._split(text, tenant)
        else:
            pieces, keys = await asyncio.to_thread(self._split, text, tenant)
        cached = self._pieces.entries
        missing = {key: piece for key, piece in zip(keys, pieces, strict=True) if key not in cached}
        found = {key: cached[key] for key in keys if key not in missing}
        if missing:
            encoded = await self._encode_batch(list(missing.values()), tenant, bound, special=False)
            found.update(zip(missing, encoded, strict=True))
        for key in keys:
            self._pieces.remember(key, found[key])
        parts = [found[key] for key in keys]
        if sum(map(len, parts)) <= JOINED_TOKENS:
            return _concatenate(parts)
        return await asyncio.to_thread(_concatenate, parts)

    def _split(self, text: str, tenant: Tenant) -> tuple[list[str], list[bytes]]:
        """Split a text, and return its pieces and the cache key of each."""
        assert self._splitter is not None
        pieces = list(self._splitter.pieces(text))
        if len(text) > LONG_BYTES:
            yield_gil()
        seed = xxh3_64_intdigest(tenant.group.encode(), self._key)
        return pieces, [xxh3_128_digest(piece.encode("utf-8", "surrogatepass"), seed) for piece in pieces]

    async def _encode_batch(
        self, texts: Sequence[str], tenant: Tenant, bound: "_TokenBound", *, special: bool
    ) -> list[Tokens]:
        """Return the tokens of each text. Raises PromptTooLong, BadRequest, TenantQueueFull."""
        # The pieces of a conversation are one prompt; several texts of a completion are several prompts.
        tokens_max, together = bound.tokens_max, not special
        encode = partial(
            self._encoder.encode, texts, special=special, tokens_max=tokens_max, together=together
        )
        try:
            characters = sum(map(len, texts))
            if characters <= INLINE_CHARACTERS_MAX:
                return encode()
            if characters <= PROCESS_CHARACTERS_MIN or self._process_job is None:
                return await self._threads.run(tenant.id, characters, encode)
            job = self._process_job(list(texts), special=special, tokens_max=tokens_max, together=together)
            try:
                work = partial(_encode_in_process_or_here, job, encode)
                return await self._threads.run(tenant.id, characters, work)
            except asyncio.CancelledError:
                job.abandon()
                raise
        except TooManyTokens as err:
            raise bound.exceeded(err.at_least) from None
        except EncodingFailed:
            raise BadRequest("The model's tokenizer cannot read the prompt.", param="messages") from None


class _TokenBound:
    """The most tokens that a prompt may have beside its answer, and the error for a longer prompt."""

    __slots__ = ("_context_length", "_output_tokens", "tokens_max")

    def __init__(self, request: InferenceRequest, context_length: int | None) -> None:
        self._context_length = context_length
        self._output_tokens = request.output_tokens_needed
        self.tokens_max = TOKENS_MAX if context_length is None else context_length - self._output_tokens

    def exceeded(self, at_least: int) -> PromptTooLong:
        """Return the error for a prompt of at least so many tokens."""
        return PromptTooLong(
            prompt_tokens=at_least,
            output_tokens=self._output_tokens,
            context_length=self._context_length or TOKENS_MAX,
            exact=False,
        )


def _encode_in_process_or_here(job: EncodingJob, encode_here: Callable[[], list[Tokens]]) -> list[Tokens]:
    try:
        return job.tokens()
    except EncoderUnavailable:
        return encode_here() if job.is_wanted else []


def _concatenate(parts: Iterable[Tokens]) -> Tokens:
    """Concatenate tokens slice by slice, because a call keeps the GIL until it returns."""
    tokens: Tokens = array("I")
    for part in parts:
        for at in range(0, len(part), JOINED_TOKENS):
            tokens.extend(part[at : at + JOINED_TOKENS] if len(part) > JOINED_TOKENS else part)
    return tokens
