"""POST /v1/embeddings: texts or token ids to vectors, as lists or as base64 of little-endian float32.

One text is computed at a time, a chunk between two steps of the engine: a client that leaves ends it after a chunk.
"""

import asyncio
import base64
import sys
from array import array
from typing import Any

import msgspec
import orjson
from aiohttp import web

from workers.engine.errors import RequestRefused
from workers.engine.scheduler.limits import Limits
from workers.engine_server.errors import ApiError, bad_request
from workers.engine_server.requests import read
from workers.engine_server.worker import WORKER, EngineWorker, request_name

TEXTS_MAX = 2048
"""As OpenAI has it."""


class EngineEmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    rid: str | None = None


async def embeddings(request: web.Request) -> web.Response:
    """Vectors of length one, one for each text."""
    worker = request.app[WORKER]
    body = await read(request, EngineEmbeddingBody)
    _check(worker, body)
    prompts = await _prompts(worker, body.input)
    with worker.live.enter(request_name(request, body.rid)):
        vectors = [await _vector(worker, prompt) for prompt in prompts]
    tokens = sum(map(len, prompts))
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ],
        "model": worker.options.model_name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return web.Response(body=orjson.dumps(answer), content_type="application/json")


def _check(worker: EngineWorker, body: EngineEmbeddingBody) -> None:
    if body.model is not None and body.model != worker.options.model_name:
        raise ApiError(
            404, f"The model {body.model!r} does not exist.", param="model", code="model_not_found"
        )
    if body.encoding_format not in (None, "float", "base64"):
        raise bad_request("encoding_format must be float or base64.", param="encoding_format")
    if body.dimensions is not None:
        raise bad_request(
            "dimensions is not supported by this worker: its vectors cannot be cut without losing what they mean.",
            param="dimensions",
            code="unsupported_parameter",
        )


async def _prompts(worker: EngineWorker, given: str | list[Any]) -> list[list[int]]:
    """Tokens of each text. Raises ApiError, RequestRefused."""
    if not given:
        raise bad_request("input must not be empty.", param="input")
    try:
        prompts = await worker.prompts.of_completion(given, TEXTS_MAX)
        for prompt in prompts:
            _fitting(worker.engine.limits, prompt)
    except (ApiError, RequestRefused) as err:
        # They speak of prompts; this client sent an input.
        code = err.code or "invalid_request"
        raise bad_request(str(err).replace("prompt", "input"), param="input", code=code) from err
    return prompts


def _fitting(limits: Limits, prompt: list[int]) -> None:
    """Nothing is written after it, and nothing of it is in the KV store."""
    unbound = Limits(
        context_length=limits.context_length,
        pool_tokens=limits.context_length,
        vocab_size=limits.vocab_size,
    )
    unbound.check(prompt, 0)


async def _vector(worker: EngineWorker, prompt: list[int]) -> list[float]:
    """Raises EngineFailed."""
    assert worker.embedder is not None
    embedding = worker.embedder.begin(prompt)

    def chunk() -> list[Any]:
        embedding.advance(worker.options.chunk_tokens)
        return []

    while not embedding.done:
        await asyncio.wrap_future(worker.engine.call(chunk))
    return embedding.vector


def _written(vector: list[float], encoding: str | None) -> list[float] | str:
    if encoding != "base64":
        return vector
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
