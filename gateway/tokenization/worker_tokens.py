"""Encodes prompts with the engine's `/tokenize`, for models without a tokenizer here (`tokenizer: worker`).

    in the cache (by keyed hash, each isolation group apart) --> the cached tokens
    not in the cache --> POST /tokenize to the least busy worker --> tokens, which are cached
    no answer in time, a refusal, media, fields that /tokenize ignores --> canonical text, as for `text`

This costs a round trip for each new prompt, and the engine tokenizes each prompt twice; a directory with
tokenizer.json is better where there is one. After an engine did not answer, no engine is called for AGAIN_SECONDS.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from gateway.domain.model import EncodedPrompt
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.media_parts import ChatMedia
from gateway.tokenization.text_encoder import TextEncoder
from gateway.tokenization.token_cache import TokenCache
from radix_cache.blocks import Tokens
from workers.adapter import SupportsTokenize, WorkerAdapter, WorkerFailed

log = logging.getLogger(__name__)

RawFields = Mapping[str, msgspec.Raw]
Tokenize = Callable[[str, RawFields], Awaitable[Tokens | None]]
"""Returns the tokens for (model, fields of a /tokenize request); None if the engine refuses. Raises
WorkerFailed.
"""

CALL_SECONDS_MAX = 1.0
CALL_BYTES_MAX = 2 * 1024**2
CALLS_MAX = 64
AGAIN_SECONDS = 5.0

TOKENIZE_FIELDS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
"""Fields that chat requests and /tokenize have in common, besides `messages`."""

UNSUPPORTED_FIELDS = (
    "documents",
    "reasoning_effort",
    "functions",
    "tool_choice",
    "function_call",
    "thinking",
)
"""Fields that may change the rendered text of a chat, and that /tokenize ignores."""


class RequestLoad(Protocol):
    """The load of one worker."""

    @property
    def streams(self) -> int:
        """Requests that run on the worker now."""
        ...


class TokenizingWorker(Protocol):
    """The part of a worker that tokenization needs: its adapter, and how busy it is."""

    @property
    def adapter(self) -> WorkerAdapter:
        """The client of the worker's engine."""
        ...

    @property
    def load(self) -> RequestLoad:
        """The work under way on the worker."""
        ...


class FleetTokenizer:
    """Tokenizes a prompt with the least busy worker of its model; `serving` returns a model's workers."""

    def __init__(self, serving: Callable[[str], Iterable[TokenizingWorker]]) -> None:
        self._serving = serving

    async def __call__(self, model: str, fields: RawFields) -> Tokens | None:
        """Return the tokens; None if the engine refuses. Raises WorkerFailed."""
        able = [
            (w.load.streams, w.adapter)
            for w in self._serving(model)
            if isinstance(w.adapter, SupportsTokenize)
        ]
        if not able:
            raise WorkerFailed("no worker of this model can tokenize")
        _, adapter = min(able, key=lambda one: one[0])
        return await adapter.tokenize(fields, CALL_SECONDS_MAX)


class WorkerEncoder:
    """Encodes prompts with the `/tokenize` of the model's workers.

    Args:
        model: The name of the model.
        tokenize: Calls /tokenize of a worker.
        key: A secret seed (64 bits) for the hashes under which prompts are cached.
        memory_bytes_max: About how much memory the cache of prompts may take.
        clock: Seconds that never run backwards.
    """

    exact = True
    """Its token ids are the engine's; a prompt for which it has only text has `count_exact` False."""

    def __init__(
        self,
        model: str,
        tokenize: Tokenize,
        key: int,
        memory_bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._tokenize = tokenize
        self._key = key
        self._clock = clock
        self._text = TextEncoder()
        self._cache = TokenCache(memory_bytes_max)
        self._calls_running = 0
        self._silent_until = 0.0

    def count_answer_text(self, text: str) -> int:
        """Return the token count of a text by its length in bytes, since there is no time to call an engine."""
        return self._text.count_answer_text(text)

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        """Return the engine's tokens of the prompt, or each prompt's canonical text if the engine gives none."""
        fields = self._tokenize_fields(request)
        tokens = await self._cached_or_tokenized(fields, tenant) if fields is not None else None
        if tokens is not None:
            return [EncodedPrompt(tokens=tokens)]
        return [
            prompt if prompt.tokens is not None else msgspec.structs.replace(prompt, count_exact=False)
            for prompt in await self._text.encode(request, tenant, length_max)
        ]

    def _tokenize_fields(self, request: InferenceRequest) -> dict[str, msgspec.Raw] | None:
        """Return the fields of the /tokenize request; None if /tokenize cannot encode it, or it has tokens."""
        if not request.generates:
            return None
        model = msgspec.Raw(msgspec.json.encode(self._model))
        if request.surface is Surface.CHAT:
            if ChatMedia(request.prompt) or any(key in request.fields for key in UNSUPPORTED_FIELDS):
                return None
            if len(memoryview(request.fields["messages"])) > CALL_BYTES_MAX:
                return None
            template_fields = {key: request.fields[key] for key in TOKENIZE_FIELDS if key in request.fields}
            return {"model": model, "messages": request.fields["messages"], **template_fields}
        if len(request.prompt) != 1 or not isinstance(request.prompt[0], str):
            return None
        if len(request.prompt[0]) > CALL_BYTES_MAX:
            return None
        prompt = msgspec.Raw(msgspec.json.encode(request.prompt[0]))
        return {"model": model, "prompt": prompt, "add_special_tokens": msgspec.Raw(b"true")}

    async def _cached_or_tokenized(self, fields: dict[str, msgspec.Raw], tenant: Tenant) -> Tokens | None:
        body = msgspec.json.encode(fields)
        key = xxh3_128_digest(body, xxh3_64_intdigest(tenant.group.encode(), self._key))
        if (cached := self._cache.entries.get(key)) is not None:
            self._cache.remember(key, cached)
            return cached
        if (
            len(body) > CALL_BYTES_MAX
            or self._calls_running >= CALLS_MAX
            or self._clock() < self._silent_until
        ):
            return None
        self._calls_running += 1
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                tokens = await self._tokenize(self._model, fields)
        except (WorkerFailed, TimeoutError) as err:
            # Logged as a warning once, until an engine answers again.
            level = logging.DEBUG if self._silent_until else logging.WARNING
            self._silent_until = self._clock() + AGAIN_SECONDS
            log.log(
                level,
                "the workers of model %s did not tokenize a prompt; its text is used in place of tokens: %s",
                self._model,
                err or "no answer in time",
            )
            return None
        finally:
            self._calls_running -= 1
        self._silent_until = 0.0
        if tokens is not None:
            self._cache.remember(key, tokens)
        return tokens
