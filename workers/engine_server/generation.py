"""POST /v1/chat/completions and /v1/completions.

    body -> typed -> prompt tokens -> engine -> outputs -> one JSON, or frames as they come

Nothing is sent before the first output: until then a failure still is an HTTP status, and the time to the first
byte is the time to the first token. After it a failure is an error frame, and no [DONE].

Each choice is a sequence of its own: of equal prompts the scheduler computes one, and the others match its blocks.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

import orjson
from aiohttp import web

from workers.engine.aio import OutputStream
from workers.engine.engine import Output, Request
from workers.engine.errors import RequestRefused
from workers.engine.sample.params import SamplingParams
from workers.engine_server.answers import Answer, ChatAnswer, Head, Json, TextAnswer
from workers.engine_server.errors import ApiError, bad_request, translate
from workers.engine_server.requests import ChatBody, CompletionBody, Sampling, read_generation
from workers.engine_server.worker import WORKER, Worker, request_name

COMPLETION_TOKENS = 16
"""OpenAI's max_tokens of a text completion that names none."""

# Each is looked at for every token of its request, by the one thread that computes for all.
STOPS_MAX = 32
STOP_CHARS_MAX = 256
CACHE_SALT_CHARS_MAX = 1024

CHOICES_MAX = 128
"""Of all prompts of a request together; a shorter queue takes no more than it holds."""

_DONE = b"data: [DONE]\n\n"
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


Outputs = AsyncGenerator[tuple[int, Output], None]


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """A conversation goes on; by default for as long as the context allows."""
    worker = request.app[WORKER]
    body = await read_generation(request, ChatBody)
    _must_be_served(worker, body)
    prompt = await worker.prompts.of_chat(body.messages, variables=body.chat_template_kwargs)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if max_tokens is None:
        max_tokens = max(1, worker.engine.limits.tokens_max - len(prompt))
    try:
        return await _generate(request, body, [prompt], max_tokens, ChatAnswer)
    except RequestRefused as err:
        # The engine speaks of prompts; this client sent messages.
        param = "messages" if err.param == "prompt" else err.param
        raise RequestRefused(str(err), param=param, code=err.code) from err


async def completions(request: web.Request) -> web.StreamResponse:
    """A text goes on."""
    worker = request.app[WORKER]
    body = await read_generation(request, CompletionBody)
    _must_be_served(worker, body)
    prompts = await worker.prompts.of_completion(body.prompt, CHOICES_MAX)
    max_tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return await _generate(request, body, prompts, max_tokens, TextAnswer)


def _must_be_served(worker: Worker, body: Sampling) -> None:
    if body.model is not None and body.model != worker.options.model_name:
        raise ApiError(
            404, f"The model {body.model!r} does not exist.", param="model", code="model_not_found"
        )
    if body.cache_salt is not None and len(body.cache_salt) > CACHE_SALT_CHARS_MAX:
        raise bad_request(f"cache_salt has at most {CACHE_SALT_CHARS_MAX} characters.", param="cache_salt")


def _params(body: Sampling, max_tokens: int) -> SamplingParams:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stop) > STOPS_MAX or any(len(text) > STOP_CHARS_MAX for text in stop):
        raise bad_request(
            f"stop has at most {STOPS_MAX} strings of at most {STOP_CHARS_MAX} characters.", param="stop"
        )
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        seed=body.seed,
        stop=tuple(stop),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
    )


async def _generate(
    request: web.Request,
    body: Sampling,
    prompts: list[list[int]],
    max_tokens: int,
    kind: Callable[[Head], Answer],
) -> web.StreamResponse:
    worker = request.app[WORKER]
    rid = request_name(request, body.rid)
    head = Head(
        rid=rid,
        model=worker.options.model_name,
        created=int(time.time()),
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        per_prompt=_choices_of_each(worker, body, len(prompts)),
    )
    params = _params(body, max_tokens)
    # Left on every ending: a client that goes away cancels this handler, and that aborts the sequences.
    async with AsyncExitStack() as stack:
        choices: list[OutputStream] = []
        for prompt in prompts:
            for number in range(head.per_prompt):
                job = Request(
                    id=stack.enter_context(worker.live.enter(rid)),
                    prompt=prompt,
                    # With one seed for all, all choices would be the same.
                    params=params if params.seed is None else replace(params, seed=params.seed + number),
                    salt=body.cache_salt or "",
                )
                choices.append(await stack.enter_async_context(await worker.engine.submit(job)))
        outputs = await stack.enter_async_context(aclosing(_as_they_come(choices)))
        send = _send_stream if body.stream else _send_whole
        return await send(request, outputs, len(choices), kind(head), head)


def _choices_of_each(worker: Worker, body: Sampling, prompts: int) -> int:
    """How many answers each prompt is to get."""
    number = 1 if body.n is None else body.n
    choices_max = min(CHOICES_MAX, worker.options.waiting_max)
    if number < 1 or prompts * number > choices_max:
        raise bad_request(
            f"A request has between 1 and {choices_max} choices, not {prompts * number}.",
            param="n" if prompts == 1 else "prompt",
        )
    return number


async def _as_they_come(choices: Sequence[OutputStream]) -> Outputs:
    """The outputs of all choices, each with the index of its own."""
    if len(choices) == 1:
        async for output in choices[0]:
            yield 0, output
        return
    waiting = {asyncio.ensure_future(anext(choice)): index for index, choice in enumerate(choices)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index, output = waiting.pop(task), task.result()
                if not output.finish:
                    waiting[asyncio.ensure_future(anext(choices[index]))] = index
                yield index, output
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _send_whole(
    request: web.Request, outputs: Outputs, choices: int, answer: Answer, head: Head
) -> web.StreamResponse:
    texts: list[list[str]] = [[] for _ in range(choices)]
    lasts: dict[int, Output] = {}
    async for index, output in outputs:
        texts[index].append(output.text)
        lasts[index] = output
    body = orjson.dumps(answer.whole(["".join(text) for text in texts], _in_order(lasts)))
    return web.Response(body=body, content_type="application/json", headers={"x-request-id": head.rid})


async def _send_stream(
    request: web.Request, outputs: Outputs, choices: int, answer: Answer, head: Head
) -> web.StreamResponse:
    first = await anext(outputs)
    response = web.StreamResponse(headers={**_STREAM_HEADERS, "x-request-id": head.rid})
    await response.prepare(request)
    try:
        await _send_pieces(response, first, outputs, answer, head)
        await response.write(_DONE)
    except ConnectionResetError:
        raise
    except Exception as err:  # noqa: BLE001 - the status is sent already: a frame is the only way to tell
        await response.write(b"data: " + translate(err).body() + b"\n\n")
    await response.write_eof()
    return response


async def _send_pieces(
    response: web.StreamResponse, first: tuple[int, Output], outputs: Outputs, answer: Answer, head: Head
) -> None:
    lasts: dict[int, Output] = {}
    async for index, output in _with_first(first, outputs):
        if index not in lasts and (begin := answer.first(index)):
            await response.write(_frame(begin))
        lasts[index] = output
        # A step may let no text out: half a character, or what may become a stop string.
        if output.text:
            await response.write(_frame(answer.piece(index, output.text)))
        if output.finish:
            await response.write(_frame(answer.last(index, output.finish)))
    if head.include_usage:
        await response.write(_frame(answer.counts(_in_order(lasts))))


async def _with_first(first: tuple[int, Output], outputs: Outputs) -> Outputs:
    yield first
    async for output in outputs:
        yield output


def _in_order(lasts: Mapping[int, Output]) -> list[Output]:
    return [lasts[index] for index in sorted(lasts)]


def _frame(chunk: Json) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
