"""What the engine says goes to the client: as one JSON, or as frames while it comes.

Nothing is sent before the first output: until then a failure still is an HTTP status, and the time to the first
byte is the time to the first token. After it a failure is an error frame, and no [DONE].
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import orjson
from aiohttp import web

from workers.engine.async_engine import OutputStream
from workers.engine.request import Output
from workers.engine.scheduler.sequence import FinishReason
from workers.engine_server.choices import ChoiceState, CompletedChoice
from workers.engine_server.completion_formatters import CompletionFormatter, CompletionMetadata, Json
from workers.engine_server.errors import ApiError, translate

_DONE = b"data: [DONE]\n\n"
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

Outputs = AsyncGenerator[tuple[int, Output], None]


async def as_they_come(choices: Sequence[OutputStream]) -> Outputs:
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


async def send_whole(
    request: web.Request,
    outputs: Outputs,
    choices: Sequence[ChoiceState],
    answer: CompletionFormatter,
    head: CompletionMetadata,
) -> web.StreamResponse:
    """One JSON, once all choices have ended."""
    wholes = [CompletedChoice(choice=choice) for choice in choices]
    async for index, output in outputs:
        wholes[index].said.append(choices[index].hear(output))
    lasts = _lasts(choices)
    _refuse_if_late(*lasts)
    body = orjson.dumps(answer.whole(wholes, lasts))
    return web.Response(body=body, content_type="application/json", headers={"x-request-id": head.rid})


async def send_stream(
    request: web.Request,
    outputs: Outputs,
    choices: Sequence[ChoiceState],
    answer: CompletionFormatter,
    head: CompletionMetadata,
) -> web.StreamResponse:
    """Frames while it comes."""
    first = await anext(outputs)
    _refuse_if_late(first[1])
    response = web.StreamResponse(headers={**_STREAM_HEADERS, "x-request-id": head.rid})
    await response.prepare(request)
    try:
        await _send_pieces(response, _with_first(first, outputs), choices, answer)
        if head.include_usage:
            await response.write(_frame(answer.counts(_lasts(choices))))
        await response.write(_DONE)
    except ConnectionResetError:
        raise
    except Exception as err:  # noqa: BLE001 - the status is sent already: a frame is the only way to tell
        await response.write(b"data: " + translate(err).body() + b"\n\n")
    await response.write_eof()
    return response


def _refuse_if_late(*outputs: Output) -> None:
    """Nothing was said yet, so that the deadline passed still is an error and no answer."""
    if all(output.finish is FinishReason.DEADLINE for output in outputs):
        raise ApiError(
            503, "The request waited past its deadline; nothing was computed.", code="deadline_exceeded"
        )


async def _send_pieces(
    response: web.StreamResponse,
    outputs: Outputs,
    choices: Sequence[ChoiceState],
    answer: CompletionFormatter,
) -> None:
    async for index, output in outputs:
        choice = choices[index]
        if choice.last is None and (begin := answer.first(index)):
            await response.write(_frame(begin))
        if said := choice.hear(output):
            for chunk in answer.pieces(index, said):
                await response.write(_frame(chunk))
        if output.finish:
            await response.write(_frame(answer.last(index, choice)))


async def _with_first(first: tuple[int, Output], outputs: Outputs) -> Outputs:
    yield first
    async for output in outputs:
        yield output


def _lasts(choices: Sequence[ChoiceState]) -> list[Output]:
    """The last output of each choice, once all have ended."""
    return [choice.last for choice in choices if choice.last is not None]


def _frame(chunk: Json) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
