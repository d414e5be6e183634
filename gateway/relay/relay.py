"""Passes a worker's answer on to the client, as it comes."""

from collections.abc import Mapping

import msgspec

from gateway.domain.errors import RefusedByWorker, StreamInterrupted, WorkerError
from gateway.domain.exchange import Exchange
from gateway.domain.request import InferenceRequest
from gateway.domain.token_usage import TokenUsage, read_usage
from gateway.fleet.response_shape import ResponseShapes
from gateway.relay.error_redaction import read_error, without_cached_tokens, without_transfers
from gateway.relay.sse import FrameFilter
from gateway.relay.sse_payloads import Payloads
from gateway.relay.stream_aggregator import Assembly, has_faithful_stream
from gateway.telemetry.record import Progress
from workers.adapter import FailureKind, StreamBroken, WorkerAnswer, WorkerUnreachable

BODY_BYTES_MAX = 256 * 1024**2


_ABSENT = msgspec.Raw(b"null")


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = _ABSENT


async def relay(
    answer: WorkerAnswer,
    exchange: Exchange,
    request: InferenceRequest,
    progress: Progress,
    headers: Mapping[str, str],
    tells_cached: bool = True,
    shapes: ResponseShapes | None = None,
) -> None:
    """The whole answer; what was streamed for a client that wants it at once is put together.

    `tells_cached`: the cache is its tenant's own, so that it may know what was in it. `shapes`: of this worker's
    whole answers; learnt here.
    Raises StreamInterrupted, RefusedByWorker; ConnectionResetError if the client leaves. WorkerUnreachable if an
    answer that is no stream for its client broke off, or is none: that one has got nothing yet.
    """
    try:
        if answer.status >= 400:
            progress.refused = True
            raise _refusal(answer.status, await _whole(answer))
        streamed = answer.content_type == "text/event-stream"
        if streamed and (request.stream or not request.generates):
            await _relay_frames(answer, exchange, request, progress, headers, tells_cached)
        else:
            body = await (_assembled(answer, request, progress, shapes) if streamed else _at_once(answer))
            if shapes is not None and not streamed and has_faithful_stream(request):
                shapes.learn(request.surface, body)
            await _relay_whole(answer, body, exchange, request, progress, headers, tells_cached)
    except StreamBroken as err:
        raise StreamInterrupted from err
    finally:
        if progress.trace is not None:
            progress.mark("relay")


async def _relay_whole(
    answer: WorkerAnswer,
    body: bytes,
    exchange: Exchange,
    request: InferenceRequest,
    progress: Progress,
    headers: Mapping[str, str],
    tells_cached: bool,
) -> None:
    # Speech comes as it is; what generates tokens answers in JSON, whatever it calls that.
    kind = "application/json" if request.generates else answer.content_type or "application/json"
    try:
        if kind == "application/json":
            progress.usage = _usage(body)
            body = without_transfers(body)
            if not tells_cached:
                body = without_cached_tokens(body)
        await exchange.answer(answer.status, kind, body, headers)
    except WorkerError as err:
        raise WorkerUnreachable("no answer to such a request", failure=FailureKind.SERVER_ERROR) from err
    progress.output_sent(0)


async def _relay_frames(
    answer: WorkerAnswer,
    exchange: Exchange,
    request: InferenceRequest,
    progress: Progress,
    headers: Mapping[str, str],
    tells_cached: bool,
) -> None:
    frames = FrameFilter(wants_usage=request.include_usage, tells_cached=tells_cached)
    seen = 0
    try:
        await exchange.begin(answer.status, "text/event-stream", headers)
        async for chunk in answer.chunks():
            ready = frames.feed(chunk)
            if ready:
                await exchange.write(ready)
                progress.output_sent(frames.frames - seen)
                seen = frames.frames
        rest = frames.end()
        if rest:
            await exchange.write(rest)
        await exchange.end()
    except WorkerError as err:
        # Its client has read the beginning: nobody else can go on from there.
        raise StreamInterrupted from err
    finally:
        progress.usage = frames.usage


async def _assembled(
    answer: WorkerAnswer, request: InferenceRequest, progress: Progress, shapes: ResponseShapes | None
) -> bytes:
    """The body that a stream of it comes to. Raises WorkerUnreachable, RefusedByWorker."""
    shape = shapes.of(request.surface) if shapes is not None else None
    payloads, assembly, size = Payloads(), Assembly(request.surface, shape), 0
    try:
        async for chunk in answer.chunks():
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                raise StreamInterrupted
            for payload in payloads.feed(chunk):
                assembly.add(payload)
                progress.frames += 1
        for payload in payloads.end():
            assembly.add(payload)
        return assembly.body(done=payloads.done)
    except StreamBroken as err:
        raise WorkerUnreachable(str(err)) from err
    except StreamInterrupted as err:
        raise WorkerUnreachable("no whole answer", failure=FailureKind.SERVER_ERROR) from err
    except RefusedByWorker:
        progress.refused = True
        raise


async def _at_once(answer: WorkerAnswer) -> bytes:
    """The body of an answer that came as one. Raises WorkerUnreachable."""
    try:
        return await _whole(answer)
    except StreamBroken as err:
        raise WorkerUnreachable(str(err)) from err


async def _whole(answer: WorkerAnswer) -> bytes:
    """A body that is not a stream. Raises StreamInterrupted for one that is too large, StreamBroken."""
    parts, size = [], 0
    async for chunk in answer.chunks():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise StreamInterrupted
        parts.append(chunk)
    return b"".join(parts)


def _usage(body: bytes) -> TokenUsage | None:
    try:
        return read_usage(msgspec.json.decode(body, type=_Answer).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise WorkerError from err


def _refusal(status: int, body: bytes) -> RefusedByWorker:
    """The worker's words in our shape: engines differ in theirs."""
    said = read_error(body)
    code = said.code if isinstance(said.code, str) else None
    return RefusedByWorker(
        status, said.message or "The worker refused the request.", param=said.param, code=code
    )
