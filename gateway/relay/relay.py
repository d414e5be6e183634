"""Passes a worker's answer on to the client: a stream as it comes, any other answer as a whole."""

from collections.abc import Mapping

import msgspec

from gateway.domain.errors import RefusedByWorker, StreamInterrupted, WorkerError
from gateway.domain.exchange import Exchange
from gateway.domain.request import InferenceRequest
from gateway.domain.token_usage import TokenUsage, read_usage
from gateway.fleet.response_shape import ResponseShapes
from gateway.relay.error_redaction import TRANSFER_FIELD, read_error, without_cached_tokens, without_transfers
from gateway.relay.sse import FrameFilter
from gateway.relay.sse_payloads import SsePayloadReader
from gateway.relay.stream_aggregator import StreamAggregator, has_faithful_stream
from gateway.telemetry.record import Progress
from workers.adapter import FailureKind, StreamBroken, WorkerAnswer, WorkerUnreachable

BODY_BYTES_MAX = 256 * 1024**2
"""Longest answer that is not a stream for the client."""

EVENT_STREAM = "text/event-stream"


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")


_ANSWER = msgspec.json.Decoder(_Answer)


async def relay(
    answer: WorkerAnswer,
    exchange: Exchange,
    request: InferenceRequest,
    progress: Progress,
    headers: Mapping[str, str],
    reports_cached_tokens: bool = True,
    response_shapes: ResponseShapes | None = None,
) -> None:
    """Pass a worker's answer on to the client.

    A stream that the gateway asked for on behalf of a client that wants a whole answer is aggregated.

    Args:
        answer: The worker's answer.
        exchange: The exchange with the client.
        request: The client's request.
        progress: Gets the usage and the output of the answer.
        headers: Headers for the client.
        reports_cached_tokens: Whether the client may know how much of its prompt was cached: only where the
            tenant has a cache of its own.
        response_shapes: The shapes of this worker's whole answers; a shape that is not known yet is learnt here.

    Raises:
        StreamInterrupted: The answer broke off, and the client has had the beginning of it.
        RefusedByWorker: The worker refused the request as the client's mistake.
        ConnectionResetError: The client has left.
        WorkerUnreachable: An answer that is not streamed to the client broke off or is malformed; nothing of it was
            sent.
    """
    try:
        if answer.status >= 400:
            progress.refused = True
            raise _refusal(answer.status, await _body_of(answer))
        streamed = answer.content_type == EVENT_STREAM
        if streamed and (request.stream or not request.generates):
            await _relay_frames(answer, exchange, request, progress, headers, reports_cached_tokens)
            return
        if streamed:
            body = await _aggregated(answer, request, progress, response_shapes)
        else:
            read = getattr(answer, "whole", None)
            body = await _body_or_unreachable(answer) if read is None else read
            if (
                response_shapes is not None
                and response_shapes.of(request.surface) is None
                and has_faithful_stream(request)
            ):
                response_shapes.learn(request.surface, body)
        await _relay_whole(answer, body, exchange, request, progress, headers, reports_cached_tokens)
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
    reports_cached_tokens: bool,
) -> None:
    # Speech passes as it is; an API that generates tokens answers in JSON, whatever the content type says.
    kind = "application/json" if request.generates else answer.content_type or "application/json"
    try:
        if kind == "application/json":
            progress.usage = _usage(body)
            if TRANSFER_FIELD in body:
                body = without_transfers(body)
            if not reports_cached_tokens:
                body = without_cached_tokens(body)
        await exchange.answer(answer.status, kind, body, headers)
    except WorkerError as err:
        raise WorkerUnreachable("no answer to such a request", failure=FailureKind.SERVER_ERROR) from err
    if progress.trace is not None:
        progress.note_finish_reasons(body)
    progress.output_sent(0)


async def _relay_frames(
    answer: WorkerAnswer,
    exchange: Exchange,
    request: InferenceRequest,
    progress: Progress,
    headers: Mapping[str, str],
    reports_cached_tokens: bool,
) -> None:
    frames = FrameFilter(wants_usage=request.include_usage, reports_cached_tokens=reports_cached_tokens)
    seen, traced = 0, progress.trace is not None
    try:
        await exchange.begin(answer.status, EVENT_STREAM, headers)
        async for chunk in answer.chunks():
            ready = frames.feed(chunk)
            if ready:
                await exchange.write(ready)
                if traced:
                    progress.note_finish_reasons(ready)
                progress.output_sent(frames.frames - seen)
                seen = frames.frames
        rest = frames.end()
        if rest:
            await exchange.write(rest)
        await exchange.end()
    except WorkerError as err:
        # The client has read the beginning of this answer: another worker cannot continue it.
        raise StreamInterrupted from err
    except RefusedByWorker:
        progress.refused = True
        raise
    finally:
        progress.usage = frames.usage


async def _aggregated(
    answer: WorkerAnswer,
    request: InferenceRequest,
    progress: Progress,
    response_shapes: ResponseShapes | None,
) -> bytes:
    """Return the whole answer that a stream amounts to. Raises WorkerUnreachable, RefusedByWorker."""
    shape = response_shapes.of(request.surface) if response_shapes is not None else None
    reader, aggregator, size = SsePayloadReader(), StreamAggregator(request.surface, shape), 0
    try:
        async for chunk in answer.chunks():
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                raise StreamInterrupted
            for payload in reader.feed(chunk):
                aggregator.add(payload)
                progress.frames += 1
        for payload in reader.end():
            aggregator.add(payload)
        return aggregator.body(done=reader.done)
    except StreamBroken as err:
        raise WorkerUnreachable(str(err)) from err
    except StreamInterrupted as err:
        raise WorkerUnreachable("no whole answer", failure=FailureKind.SERVER_ERROR) from err
    except RefusedByWorker:
        progress.refused = True
        raise


async def _body_or_unreachable(answer: WorkerAnswer) -> bytes:
    """Return the body of an answer that is not a stream. Raises WorkerUnreachable if it breaks off."""
    try:
        return await _body_of(answer)
    except StreamBroken as err:
        raise WorkerUnreachable(str(err)) from err


async def _body_of(answer: WorkerAnswer) -> bytes:
    """Return a body that is not a stream. Raises StreamInterrupted for one that is too large, StreamBroken."""
    parts, size = [], 0
    async for chunk in answer.chunks():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            raise StreamInterrupted
        parts.append(chunk)
    return b"".join(parts)


def _usage(body: bytes) -> TokenUsage | None:
    """Return the usage in a whole answer. Raises WorkerError for a body that is not a JSON object."""
    try:
        return read_usage(_ANSWER.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise WorkerError from err


def _refusal(status: int, body: bytes) -> RefusedByWorker:
    """Return a worker's refusal in the gateway's own shape; engines have different ones."""
    reported = read_error(body)
    if (too_long := reported.context_refusal) is not None:
        return too_long
    code = reported.code if isinstance(reported.code, str) else None
    return RefusedByWorker(
        status, reported.message or "The worker refused the request.", param=reported.param, code=code
    )
