"""Passes a worker's answer on to the client: a stream as it comes, any other answer as a whole."""

import logging
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from gateway.domain.answer_tally import AnswerTally
from gateway.domain.errors import RefusedByWorker, StreamInterrupted, WorkerError
from gateway.domain.exchange import Exchange
from gateway.domain.request import InferenceRequest
from gateway.domain.token_usage import TokenUsage, read_usage
from gateway.fleet.response_shape import ResponseShapes
from gateway.relay.answer_memory import AnswerMemory
from gateway.relay.frame_filter import FrameFilter
from gateway.relay.redaction import TRANSFER_FIELD, without_cached_tokens, without_transfers
from gateway.relay.sse_payloads import SsePayloadReader
from gateway.relay.stream_aggregator import StreamAggregator, has_faithful_stream
from gateway.relay.worker_errors import (
    ERROR_FIELD,
    StreamError,
    WorkerErrorFields,
    error_in_answer,
    read_error,
)
from gateway.telemetry.request_record import Progress
from workers.adapter import FailureKind, StreamBroken, WorkerAnswer, WorkerUnreachable

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 256 * 1024**2
"""Longest stream for a client that wants a whole answer."""

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
    *,
    reports_cached_tokens: bool = True,
    response_shapes: ResponseShapes | None = None,
    running_usage: bool = False,
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
        running_usage: Whether the worker was asked for usage in every frame of a stream.

    Raises:
        StreamInterrupted: The answer broke off, ended without a sign of its end, or reported an error, and the
            client has had the beginning of it.
        RefusedByWorker: The worker refused the request as the client's mistake.
        ConnectionResetError: The client has left.
        WorkerUnreachable: One of the failures above while the client has had nothing of the answer, or a whole
            answer that is malformed or too large: another worker may try.
        Overloaded: Other requests take the memory that the answer needs.
    """
    memory = None
    try:
        if answer.status >= 400:
            progress.worker_refused = True
            body = await _body_or_unreachable(answer, AnswerMemory(exchange.memory))
            raise _refusal(answer.status, body)
        streamed = answer.content_type == EVENT_STREAM
        if streamed and (request.stream or not request.generates):
            frames = FrameFilter(
                wants_usage=request.include_usage,
                reports_cached_tokens=reports_cached_tokens,
                answers=request.answers,
                running_usage=running_usage,
                wants_running_usage=request.running_usage,
            )
            await _relay_frames(answer, exchange, request, progress, headers, frames)
            return
        if streamed:
            memory = AnswerMemory(exchange.memory)
            body = await _aggregated(answer, request, progress, response_shapes, running_usage, memory)
        else:
            read = getattr(answer, "whole", None)
            if read is None:
                memory = AnswerMemory(exchange.memory)
                read = await _body_or_unreachable(answer, memory)
            body = read
            if (
                response_shapes is not None
                and response_shapes.of(request.surface) is None
                and has_faithful_stream(request)
            ):
                response_shapes.learn(request.surface, body)
        await _relay_whole(answer, body, exchange, request, progress, headers, reports_cached_tokens)
    except WorkerUnreachable:
        if memory is not None:
            memory.release()
        raise
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
            error = error_in_answer(body) if ERROR_FIELD in body else None
            if error is not None:
                _fail(error, False, request, progress)
            progress.usage = _usage(body)
            if request.generates:
                progress.tally = AnswerTally(body)
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
    frames: FrameFilter,
) -> None:
    seen, begun, traced, last = 0, False, progress.trace is not None, b""
    try:
        async for chunk in answer.chunks():
            ready = frames.feed(chunk)
            if ready:
                if not begun:
                    begun = True
                    await exchange.begin(answer.status, EVENT_STREAM, headers)
                if frames.done and getattr(answer, "complete", False):
                    last += ready  # Leaves together with the end of the stream.
                else:
                    await exchange.write(ready)
                if traced:
                    progress.note_finish_reasons(ready)
                progress.output_sent(frames.frames - seen)
                seen = frames.frames
            if frames.error is not None:
                break
        rest = frames.end()
        if frames.error is not None or (request.generates and not frames.ended):
            _fail(frames.error, begun, request, progress)
        if not begun:
            await exchange.begin(answer.status, EVENT_STREAM, headers)
        await exchange.end(last + rest)
    except StreamBroken as err:
        if begun:  # The client has the beginning of this answer, which another worker cannot continue.
            raise StreamInterrupted from err
        raise WorkerUnreachable(str(err)) from err
    except WorkerError as err:
        raise StreamInterrupted from err
    except RefusedByWorker:
        progress.worker_refused = True
        raise
    finally:
        progress.usage, progress.tally = frames.usage, frames.tally


def _fail(error: StreamError | None, begun: bool, request: InferenceRequest, progress: Progress) -> NoReturn:
    """Raise the error of an answer that reports one, or that ended without a sign of its end.

    `begun`: whether the client has had the beginning of it.
    """
    if not begun and error is not None and error.refusal is not None:
        progress.worker_refused = True
        raise _refused(error.refusal, error.fields)
    reason = "its answer is an error" if error is not None else "its answer ended early"
    if begun:
        log.warning("request %s broke off at worker %s: %s", progress.id, progress.worker, reason)
        raise StreamInterrupted
    raise WorkerUnreachable(reason, failure=FailureKind.SERVER_ERROR)


async def _aggregated(
    answer: WorkerAnswer,
    request: InferenceRequest,
    progress: Progress,
    response_shapes: ResponseShapes | None,
    running_usage: bool,
    memory: AnswerMemory,
) -> bytes:
    """Return the whole answer that a stream amounts to. Raises WorkerUnreachable, RefusedByWorker, Overloaded."""
    shape = response_shapes.of(request.surface) if response_shapes is not None else None
    reader, aggregator, size = SsePayloadReader(), StreamAggregator(request.surface, shape), 0
    frames = FrameFilter(wants_usage=True, answers=request.answers, running_usage=running_usage)
    try:
        async for chunk in answer.chunks():
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                raise StreamInterrupted
            before = aggregator.bytes_kept
            for payload in reader.feed(frames.feed(chunk)):
                aggregator.add(payload)
                progress.frames += 1
            memory.add(aggregator.bytes_kept - before)
            if frames.error is not None:
                _fail(frames.error, False, request, progress)
        for payload in (*reader.feed(frames.end()), *reader.end()):
            aggregator.add(payload)
        return aggregator.body(done=reader.done)
    except StreamBroken as err:
        raise WorkerUnreachable(str(err)) from err
    except StreamInterrupted as err:
        raise WorkerUnreachable("no whole answer", failure=FailureKind.SERVER_ERROR) from err
    except RefusedByWorker:
        progress.worker_refused = True
        raise
    finally:
        progress.tally = frames.tally


async def _body_or_unreachable(answer: WorkerAnswer, memory: AnswerMemory) -> bytes:
    """Return the body of an answer that is not a stream.

    Raises WorkerUnreachable if it breaks off or is too large, Overloaded.
    """
    try:
        return await _body_of(answer, memory)
    except StreamBroken as err:
        raise WorkerUnreachable(str(err)) from err


async def _body_of(answer: WorkerAnswer, memory: AnswerMemory) -> bytes:
    """Return a body that is not a stream. Raises WorkerUnreachable for one that is too large, StreamBroken."""
    parts = []
    async for chunk in answer.chunks():
        memory.add(len(chunk))
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
    return _refused(status, read_error(body))


def _refused(status: int, reported: WorkerErrorFields) -> RefusedByWorker:
    if (too_long := reported.context_refusal) is not None:
        return too_long
    code = reported.code if isinstance(reported.code, str) else None
    return RefusedByWorker(
        status, reported.message or "The worker refused the request.", param=reported.param, code=code
    )
