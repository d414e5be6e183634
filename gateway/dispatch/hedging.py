"""Hedging: one request on two workers at once; the worker with the first byte answers, the other is cancelled.

    first    |-- no first byte ----------------|--------- ... ---->  answers, or is cancelled
    second                 after so long -> |-----|--------- ... ->  is cancelled, or answers

Hedging is for requests that a slow worker would keep waiting, and costs a second prefill. So it is off unless the
settings say otherwise, and spends the same budget as retries. Long prompts and background requests are not hedged,
nor are requests of a tenant whose limits have no room for the same request twice. A second attempt never goes past
a waiting request, of any model of the worker and at any gateway; batch work that waits does not count.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from gateway.quotas.quota_store import UNITS, Lease
from workers.adapter import WorkerAnswer, WorkerFailed

OUTCOMES = ("won", "lost", "failed", "left")
"""Of second attempts: the second answered, the first did, the second brought no answer, the client left before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedging:
    """When a request is sent to a second worker, and how often that happened."""

    enabled: bool = False
    after_seconds: float | None = None
    """Seconds without a first byte; None: as long as 95 of 100 first tokens take on that worker."""
    prompt_tokens_max: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """How often each of OUTCOMES came about."""


def fits_twice(lease: Lease) -> bool:
    """Return whether the tenant's limits have room for the same request twice; it is charged once all the same."""
    needs = dict(zip(UNITS, lease.reservation.cost.units, strict=True))
    return all(
        status.remaining >= needs.get(status.unit, 1)
        for status in lease.limit_statuses
        if status.limit.enforced
    )


class OpeningStream:
    """A worker's stream on its way to its first bytes, in a task of its own."""

    __slots__ = ("stream", "task")

    def __init__(
        self, stream: AbstractAsyncContextManager[WorkerAnswer], task: "asyncio.Task[WorkerAnswer]"
    ) -> None:
        self.stream = stream
        self.task = task
        """Ends with the answer, once its first bytes are there."""

    @classmethod
    def start(cls, stream: AbstractAsyncContextManager[WorkerAnswer]) -> "OpeningStream":
        """Start the task that opens the stream."""
        return cls(stream, asyncio.get_running_loop().create_task(_enter(stream)))

    @property
    def refused(self) -> bool:
        """Whether the worker refused the request; asked once the task is done without a failure."""
        return self.task.result().status >= 400

    def failure(self) -> WorkerFailed | None:
        """Return why the worker brought nothing, once the task is done; raise any other error of the task."""
        err = self.task.exception()
        if err is None or isinstance(err, WorkerFailed):
            return err
        raise err

    async def close(self) -> None:
        """Close the stream, however far it has come."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled() and self.task.exception() is None:
            await self.stream.__aexit__(None, None, None)


async def first_of(
    first: OpeningStream,
    after_seconds: float,
    open_second: Callable[[], Awaitable[OpeningStream | None]],
    on_failure: Callable[[OpeningStream, WorkerFailed | None], None],
) -> OpeningStream:
    """Return the stream that has the first bytes, and leave the other as it is.

    `open_second` is called if the first stream has no bytes in time. `on_failure` is called for a stream that
    brought nothing while the other continues; with None if the second one has refused, which is no answer while
    the first may have one. Raises the last stream's WorkerFailed; the first stream's at once, if that one
    timed out.
    """
    await asyncio.wait([first.task], timeout=after_seconds)
    second = None if first.task.done() else await open_second()
    running = [first] if second is None else [first, second]
    while True:
        await asyncio.wait([opening.task for opening in running], return_when=asyncio.FIRST_COMPLETED)
        for opening in [one for one in running if one.task.done()]:
            err = opening.failure()
            alone = len(running) == 1
            if err is None and (alone or opening is first or not opening.refused):
                return opening
            if err is not None and (alone or (opening is first and err.timed_out)):
                raise _copy_of(err)
            running.remove(opening)
            on_failure(opening, err)


async def _enter(stream: AbstractAsyncContextManager[WorkerAnswer]) -> WorkerAnswer:
    return await stream.__aenter__()


def _copy_of(err: WorkerFailed) -> WorkerFailed:
    """Copy a failure: an error that a task holds, raised where the task is held, would be a reference cycle."""
    return WorkerFailed(
        str(err),
        failure=err.failure,
        timed_out=err.timed_out,
        retry_after_seconds=err.retry_after_seconds,
        rate_limited=err.rate_limited,
        worker=err.worker,
        body=err.body,
    )
