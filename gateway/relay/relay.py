"""Passes a worker's answer on to the client: a stream as it comes, any other answer as a whole."""

from collections.abc import Callable, Mapping

import msgspec

from gateway.domain.answer_tally import AnswerTally
from gateway.domain.errors import WorkerError
from gateway.domain.exchange import Exchange
from gateway.domain.request import InferenceRequest
from gateway.domain.token_usage import TokenUsage, read_usage
from gateway.fleet.response_shape import ResponseShapes
from gateway.relay.answer_failure import raise_failure, refusal_of
from gateway.relay.answer_memory import AnswerMemory
from gateway.relay.frame_filter import FrameFilter
from gateway.relay.long_answer import LONG_BYTES, LongAnswer
from gateway.relay.redaction import TRANSFER_FIELD, without_cached_tokens, without_transfers
from gateway.relay.stream_relay import EVENT_STREAM, StreamRelay
from gateway.relay.whole_answer import read_body, read_whole
from gateway.relay.worker_errors import ERROR_FIELD, error_in_answer
from gateway.telemetry.progress import Progress
from workers.adapter import FailureKind, WorkerAnswer, WorkerFailed


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
    on_begun: Callable[[], None] = lambda: None,
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
        on_begun: Called when the client has the first bytes of a stream, unless these are all of it.
        reports_cached_tokens: Whether the client gets the count of cached tokens of its prompt: only where the
            tenant has a cache of its own.
        response_shapes: The shapes of this worker's whole answers; a shape that is not known yet is learnt here.
        running_usage: Whether usage in every frame of a stream was requested of the worker.

    Raises:
        StreamInterrupted: The answer broke off, ended without a sign of its end, or reported an error, and the
            client has had the beginning of it.
        RefusedByWorker: The worker refused the request as the client's mistake.
        ConnectionResetError: The client has left.
        WorkerFailed: One of the failures above while the client has had nothing of the answer, or a whole
            answer that is malformed or too large: another worker may try.
        Overloaded: Other requests take the memory that the answer needs.
    """
    memory = AnswerMemory(exchange.memory)
    try:
        if answer.status >= 400:
            progress.worker_refused = True
            refusal = await read_body(answer, memory)
            raise refusal_of(answer.status, refusal if len(refusal) <= LONG_BYTES else b"")
        if answer.content_type == EVENT_STREAM and (request.stream or not request.generates):
            frames = FrameFilter(
                wants_usage=request.include_usage,
                reports_cached_tokens=reports_cached_tokens,
                answers=request.answers,
                running_usage=running_usage,
                wants_running_usage=request.running_usage,
            )
            await StreamRelay(answer, exchange, frames, progress, on_begun).run(request, headers)
        else:
            body = await read_whole(answer, request, progress, memory, response_shapes, running_usage)
            await _relay_whole(answer, body, exchange, request, progress, headers, reports_cached_tokens)
    except WorkerFailed:
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
    """Send a whole answer, without what the client must not see; read its usage. Raises as `relay` does."""
    # Speech passes as it is; an API that generates tokens answers in JSON, whatever its content type.
    kind = "application/json" if request.generates else answer.content_type or "application/json"
    try:
        if kind == "application/json":
            body = await _for_client(body, request, progress, reports_cached_tokens)
        await exchange.answer(answer.status, kind, body, headers)
    except WorkerError as err:
        raise WorkerFailed("no answer to such a request", failure=FailureKind.SERVER_ERROR) from err
    if progress.trace is not None:
        progress.note_finish_reasons(body[-LONG_BYTES:])
    progress.output_sent()


async def _for_client(
    body: bytes, request: InferenceRequest, progress: Progress, reports_cached_tokens: bool
) -> bytes:
    """Return a JSON answer without what the client must not see; read its usage.

    Raises WorkerError, and what `raise_failure` raises for an error in the place of an answer.
    """
    long = LongAnswer(body) if len(body) > LONG_BYTES else None
    outline = changed = body if long is None else await long.outline()
    error = error_in_answer(outline) if ERROR_FIELD in outline else None
    if error is not None:
        raise_failure(error, False, request, progress)
    progress.usage = _usage(outline)
    if request.generates and progress.tally is None:  # An answer that came as a stream has one.
        progress.tally = AnswerTally(body)
    if TRANSFER_FIELD in outline:
        changed = without_transfers(outline)
    if not reports_cached_tokens:
        changed = without_cached_tokens(changed)
    if long is None:
        return changed
    return body if changed is outline else await long.restore(changed)


def _usage(body: bytes) -> TokenUsage | None:
    """Return the usage in a whole answer. Raises WorkerError for a body that is not a JSON object."""
    try:
        return read_usage(_ANSWER.decode(body).usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise WorkerError from err
