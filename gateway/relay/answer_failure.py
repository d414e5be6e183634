"""The exceptions for answers that refuse the request, report an error, or end too early."""

import logging
from typing import NoReturn

from gateway.domain.errors import RefusedByWorker, StreamInterrupted
from gateway.domain.request import InferenceRequest
from gateway.relay.worker_errors import StreamError, WorkerErrorFields, read_error
from gateway.telemetry.progress import Progress
from workers.adapter import FailureKind, WorkerFailed

log = logging.getLogger(__name__)


def raise_failure(
    error: StreamError | None, begun: bool, request: InferenceRequest, progress: Progress
) -> NoReturn:
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
    raise WorkerFailed(reason, failure=FailureKind.SERVER_ERROR)


def refusal_of(status: int, body: bytes) -> RefusedByWorker:
    """Return a worker's refusal in the gateway's own shape; engines have different ones."""
    return _refused(status, read_error(body))


def _refused(status: int, reported: WorkerErrorFields) -> RefusedByWorker:
    if (too_long := reported.context_refusal) is not None:
        return too_long
    code = reported.code if isinstance(reported.code, str) else None
    return RefusedByWorker(
        status, reported.message or "The worker refused the request.", param=reported.param, code=code
    )
