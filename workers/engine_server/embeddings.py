"""POST /v1/embeddings: turns texts or token ids into vectors, as lists or as base64 of little-endian float32.

The texts of a request are computed one after another, a chunk of tokens between two steps of the engine. So the
work for a client that disconnects ends after the current chunk.
"""

import asyncio
import base64
import sys
from array import array
from typing import Any

import msgspec
from aiohttp import web

from workers.engine.errors import RequestRefused
from workers.engine.scheduler.limits import Limits
from workers.engine_server.engine_worker import WORKER, EngineWorker, request_name
from workers.engine_server.errors import ApiError, bad_request
from workers.engine_server.requests import read
from workers.engine_server.served_models import requested_lora

TEXTS_MAX = 2048
"""Most texts of one request: OpenAI's limit."""


class EngineEmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of POST /v1/embeddings."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    rid: str | None = None


async def embeddings(request: web.Request) -> web.Response:
    """Answer POST /v1/embeddings with one vector of length one for each text."""
    worker = request.app[WORKER]
    body = await read(request, EngineEmbeddingBody)
    lora = requested_lora(worker, body.model)
    _check(body)
    prompts = await _prompts(worker, body.input)
    with worker.live_requests.enter(request_name(request, body.rid)):
        vectors = [await _vector(worker, prompt, lora) for prompt in prompts]
    tokens = sum(map(len, prompts))
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ],
        "model": lora or worker.options.model_name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def _check(body: EngineEmbeddingBody) -> None:
    if body.encoding_format not in (None, "float", "base64"):
        raise bad_request("encoding_format must be float or base64.", param="encoding_format")
    if body.dimensions is not None:
        raise bad_request(
            "dimensions is not supported by this worker: its vectors cannot be cut without losing what they mean.",
            param="dimensions",
            code="unsupported_parameter",
        )


async def _prompts(worker: EngineWorker, given: str | list[Any]) -> list[list[int]]:
    """Return the tokens of each text. Raises ApiError, RequestRefused."""
    if not given:
        raise bad_request("input must not be empty.", param="input")
    try:
        prompts = await worker.prompt_tokenizer.tokenize_completion(given, TEXTS_MAX)
        for prompt in prompts:
            _check_fits(worker.engine.limits, prompt)
    except (ApiError, RequestRefused) as err:
        # These messages mention prompts, but the client sent an `input`.
        code = err.code or "invalid_request"
        raise bad_request(str(err).replace("prompt", "input"), param="input", code=code) from err
    return prompts


def _check_fits(limits: Limits, prompt: list[int]) -> None:
    """Check a text against the context length alone: it has no answer, and it takes no room in the KV cache."""
    unbound = Limits(
        context_length=limits.context_length,
        pool_tokens=limits.context_length,
        vocab_size=limits.vocab_size,
    )
    unbound.check(prompt, 0)


async def _vector(worker: EngineWorker, prompt: list[int], lora: str) -> list[float]:
    """Return the vector of one text. Raises EngineFailed, StepFailed."""
    assert worker.embedder is not None
    embedding = worker.embedder.begin(prompt, lora)

    def chunk() -> list[Any]:
        embedding.advance(worker.options.chunk_tokens)
        return []

    while not embedding.done:
        await asyncio.wrap_future(worker.engine.call(chunk))
    return embedding.vector


def _encoded(vector: list[float], encoding: str | None) -> list[float] | str:
    if encoding != "base64":
        return vector
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
