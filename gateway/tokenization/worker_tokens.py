"""Prompts to tokens by the engine's own word, for models whose tokenizer is not here (`tokenizer: worker`).

    known (by keyed hash, each isolation group apart) --> its tokens
    not known --> POST /tokenize to the worker that has least to do --> remembered
    no answer in time, a refusal, media, fields that it does not know --> canonical text, as without a tokenizer

It costs a round trip for each new prompt, and the engine tokenises once more than it would have to: a directory
with tokenizer.json is better where it is to be had. An engine that does not answer is left alone for a while.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from gateway.domain.model import EncodedPrompt
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.media_parts import Media
from gateway.tokenization.prompts import TextEncoder
from radix_cache.blocks import TOKEN_BYTES, Tokens
from workers.adapter import Tokenizes, WorkerAdapter, WorkerUnreachable

log = logging.getLogger(__name__)

Fields = Mapping[str, msgspec.Raw]
Ask = Callable[[str, Fields], Awaitable[Tokens | None]]
"""(model, what /tokenize is asked) to tokens; None if it refuses. Raises WorkerUnreachable."""

ASK_SECONDS_MAX = 1.0
ASK_BYTES_MAX = 2 * 1024**2
ASKING_MAX = 64
AGAIN_SECONDS = 5.0

TEMPLATE_FIELDS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
"""What chats and /tokenize have in common, besides messages."""

UNTOLD_FIELDS = ("documents", "reasoning_effort", "functions", "tool_choice", "function_call", "thinking")
"""What may change the text that a chat is rendered to, and which /tokenize does not look at."""


class RequestLoad(Protocol):
    """The load of one worker."""

    @property
    def streams(self) -> int:
        """Requests that run on the worker now."""
        ...


class ServingWorker(Protocol):
    """The part of a worker that tokenization needs: its adapter, and how busy it is."""

    @property
    def adapter(self) -> WorkerAdapter:
        """The client of the worker's engine."""
        ...

    @property
    def load(self) -> RequestLoad:
        """What the worker has to do."""
        ...


class TokensOfWorkers:
    """`serving`: workers that may be asked about a model."""

    def __init__(self, serving: Callable[[str], Iterable[ServingWorker]]) -> None:
        self._serving = serving

    async def __call__(self, model: str, fields: Fields) -> Tokens | None:
        able = [(w.load.streams, w.adapter) for w in self._serving(model) if isinstance(w.adapter, Tokenizes)]
        if not able:
            raise WorkerUnreachable("no worker that tokenises")
        _, adapter = min(able, key=lambda one: one[0])
        return await adapter.tokenize(fields, ASK_SECONDS_MAX)


class WorkerEncoder:
    """`key`: a secret seed (64 bits) for the memory of prompts, which takes `memory_bytes_max`, about."""

    exact = True

    def __init__(
        self,
        model: str,
        ask: Ask,
        key: int,
        memory_bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._ask = ask
        self._key = key
        self._memory_bytes_max = memory_bytes_max
        self._clock = clock
        self._text = TextEncoder()
        self._known: OrderedDict[bytes, Tokens] = OrderedDict()
        self._bytes = 0
        self._asking = 0
        self._silent_until = 0.0

    async def encode(
        self, request: InferenceRequest, tenant: Tenant, length_max: int | None
    ) -> list[EncodedPrompt]:
        asked = self._asked(request)
        tokens = await self._tokens(asked, tenant) if asked is not None else None
        if tokens is not None:
            return [EncodedPrompt(tokens=tokens)]
        return [
            prompt if prompt.tokens is not None else msgspec.structs.replace(prompt, counted=False)
            for prompt in await self._text.encode(request, tenant, length_max)
        ]

    def _asked(self, request: InferenceRequest) -> dict[str, msgspec.Raw] | None:
        """What the engine is asked; None if it could not say, or the prompt is tokens already."""
        if not request.generates:
            return None
        model = msgspec.Raw(msgspec.json.encode(self._model))
        if request.surface is Surface.CHAT:
            if Media(request.prompt) or any(name in request.fields for name in UNTOLD_FIELDS):
                return None
            if len(memoryview(request.fields["messages"])) > ASK_BYTES_MAX:
                return None
            told = {name: request.fields[name] for name in TEMPLATE_FIELDS if name in request.fields}
            return {"model": model, "messages": request.fields["messages"], **told}
        if len(request.prompt) != 1 or not isinstance(request.prompt[0], str):
            return None
        if len(request.prompt[0]) > ASK_BYTES_MAX:
            return None
        prompt = msgspec.Raw(msgspec.json.encode(request.prompt[0]))
        return {"model": model, "prompt": prompt, "add_special_tokens": msgspec.Raw(b"true")}

    async def _tokens(self, asked: dict[str, msgspec.Raw], tenant: Tenant) -> Tokens | None:
        body = msgspec.json.encode(asked)
        name = xxh3_128_digest(body, xxh3_64_intdigest(tenant.group.encode(), self._key))
        if (known := self._known.get(name)) is not None:
            self._known.move_to_end(name)
            return known
        if len(body) > ASK_BYTES_MAX or self._asking >= ASKING_MAX or self._clock() < self._silent_until:
            return None
        self._asking += 1
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                tokens = await self._ask(self._model, asked)
        except (WorkerUnreachable, TimeoutError) as err:
            # Said once, until it answers again.
            level = logging.DEBUG if self._silent_until else logging.WARNING
            self._silent_until = self._clock() + AGAIN_SECONDS
            log.log(
                level, "no tokens of %s from its workers, text stands in: %s", self._model, err or "too late"
            )
            return None
        finally:
            self._asking -= 1
        self._silent_until = 0.0
        if tokens is not None:
            self._remember(name, tokens)
        return tokens

    def _remember(self, name: bytes, tokens: Tokens) -> None:
        if name in self._known:
            return
        self._known[name] = tokens
        self._bytes += _memory(tokens)
        while self._bytes > self._memory_bytes_max:
            self._bytes -= _memory(self._known.popitem(last=False)[1])


def _memory(tokens: Tokens) -> int:
    """Bytes of one remembered prompt, with its name and its place in the dictionary."""
    return len(tokens) * TOKEN_BYTES + 250
