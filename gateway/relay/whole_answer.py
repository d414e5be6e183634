"""Reads a worker's answer to its end, for a client that wants a whole answer."""

from io import BytesIO

from gateway.domain.errors import RefusedByWorker, StreamInterrupted
from gateway.domain.request import InferenceRequest
from gateway.fleet.response_shape import ResponseShapes
from gateway.relay.answer_failure import raise_failure
from gateway.relay.answer_memory import AnswerMemory
from gateway.relay.faithful_streams import has_faithful_stream
from gateway.relay.frame_filter import FrameFilter
from gateway.relay.long_answer import LONG_BYTES
from gateway.relay.sse_payloads import SsePayloadReader
from gateway.relay.stream_aggregator import StreamAggregator
from gateway.relay.stream_relay import EVENT_STREAM
from gateway.telemetry.progress import Progress
from workers.adapter import FailureKind, StreamBroken, WorkerAnswer, WorkerFailed

BODY_BYTES_MAX = 256 * 1024**2
"""Longest stream for a client that wants a whole answer."""


async def read_whole(
    answer: WorkerAnswer,
    request: InferenceRequest,
    progress: Progress,
    memory: AnswerMemory,
    response_shapes: ResponseShapes | None,
    running_usage: bool,
) -> bytes:
    """Return the body of an answer, or the whole answer that a stream amounts to.

    Args:
        answer: The worker's answer.
        request: The client's request.
        progress: Gets the output of a stream.
        memory: Accounts for what is kept.
        response_shapes: As for `relay`.
        running_usage: As for `relay`.

    Raises:
        WorkerFailed: The answer broke off, is an error, or is malformed or too large.
        RefusedByWorker: The worker refused the request in its stream.
        Overloaded: Other requests take the memory that the answer needs.
    """
    if answer.content_type == EVENT_STREAM:
        return await _aggregated(answer, request, progress, memory, response_shapes, running_usage)
    body = await read_body(answer, memory) if answer.whole is None else answer.whole
    if (
        response_shapes is not None
        and len(body) <= LONG_BYTES
        and response_shapes.of(request.surface) is None
        and has_faithful_stream(request)
    ):
        response_shapes.learn(request.surface, body)
    return body


async def read_body(answer: WorkerAnswer, memory: AnswerMemory) -> bytes:
    """Return the body of an answer that is not a stream.

    Raises WorkerFailed if it breaks off or is too large, Overloaded.
    """
    body = BytesIO()  # Unlike a join at the end, it copies a long body piece by piece.
    try:
        async for chunk in answer.chunks():
            memory.add(len(chunk))
            body.write(chunk)
    except StreamBroken as err:
        raise WorkerFailed(str(err)) from err
    return body.getvalue()


async def _aggregated(
    answer: WorkerAnswer,
    request: InferenceRequest,
    progress: Progress,
    memory: AnswerMemory,
    response_shapes: ResponseShapes | None,
    running_usage: bool,
) -> bytes:
    """Return the whole answer that a stream amounts to. Raises WorkerFailed, RefusedByWorker, Overloaded."""
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
            memory.add(aggregator.bytes_kept - before)
            if frames.error is not None:
                raise_failure(frames.error, False, request, progress)
        for payload in (*reader.feed(frames.end()), *reader.end()):
            aggregator.add(payload)
        body = aggregator.body(done=reader.done)
        return body if aggregator.long_texts is None else await aggregator.long_texts.written_into(body)
    except StreamBroken as err:
        raise WorkerFailed(str(err)) from err
    except StreamInterrupted as err:
        raise WorkerFailed("no whole answer", failure=FailureKind.SERVER_ERROR) from err
    except RefusedByWorker:
        progress.worker_refused = True
        raise
    finally:
        progress.tally = frames.tally
