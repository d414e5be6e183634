"""Sends the engine's outputs to the client: as one JSON object, or as server-sent events while they are generated.

No byte is sent before the first output. Until then a failure is still an HTTP status, and the time to the first
byte is the time to the first token. A later failure is an error event, and the stream has no [DONE].
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec
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
"""Engine outputs, each with the index of its choice."""


async def merged_outputs(choices: Sequence[OutputStream]) -> Outputs:
    """Yield the outputs of all choices as they are generated, each with the index of its choice."""
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
    formatter: CompletionFormatter,
    metadata: CompletionMetadata,
) -> web.StreamResponse:
    """Return one JSON response, once all choices have ended."""
    completed = [CompletedChoice(state=choice) for choice in choices]
    async for index, output in outputs:
        completed[index].deltas.append(choices[index].add(output))
    lasts = _last_outputs(choices)
    _raise_if_deadline_passed(*lasts)
    body = msgspec.json.encode(formatter.whole(completed, lasts))
    return web.Response(body=body, content_type="application/json", headers={"x-request-id": metadata.rid})


async def send_stream(
    request: web.Request,
    outputs: Outputs,
    choices: Sequence[ChoiceState],
    formatter: CompletionFormatter,
    metadata: CompletionMetadata,
) -> web.StreamResponse:
    """Send server-sent events while the choices are generated."""
    first = await anext(outputs)
    _raise_if_deadline_passed(first[1])
    response = web.StreamResponse(headers={**_STREAM_HEADERS, "x-request-id": metadata.rid})
    await response.prepare(request)
    try:
        await _send_chunks(response, _with_first(first, outputs), choices, formatter)
        if metadata.include_usage:
            await response.write(_event(formatter.usage_chunk(_last_outputs(choices))))
        await response.write(_DONE)
    except ConnectionResetError:
        raise
    except Exception as err:  # noqa: BLE001 - the status is sent already: an event is the only way to report it
        await response.write(b"data: " + translate(err).body() + b"\n\n")
    await response.write_eof()
    return response


def _raise_if_deadline_passed(*outputs: Output) -> None:
    """Raise a 503 where every choice passed its deadline; no byte is sent yet, so the status can still be set."""
    if all(output.finish is FinishReason.DEADLINE for output in outputs):
        raise ApiError(
            503, "The request waited past its deadline; nothing was computed.", code="deadline_exceeded"
        )


async def _send_chunks(
    response: web.StreamResponse,
    outputs: Outputs,
    choices: Sequence[ChoiceState],
    formatter: CompletionFormatter,
) -> None:
    async for index, output in outputs:
        choice = choices[index]
        if choice.last is None and (first := formatter.first_chunk(index)):
            await response.write(_event(first))
        if delta := choice.add(output):
            for chunk in formatter.delta_chunks(index, delta):
                await response.write(_event(chunk))
        if output.finish:
            await response.write(_event(formatter.last_chunk(index, choice)))


async def _with_first(first: tuple[int, Output], outputs: Outputs) -> Outputs:
    yield first
    async for output in outputs:
        yield output


def _last_outputs(choices: Sequence[ChoiceState]) -> list[Output]:
    """Return the last output of each choice, once all have ended."""
    return [choice.last for choice in choices if choice.last is not None]


def _event(chunk: Json) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
