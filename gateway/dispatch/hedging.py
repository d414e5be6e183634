"""One request on two workers at once: whoever brings the first byte answers, and the other is let go.

    first    |-- no first byte ----------------|--------- ... ---->  answers, or is cancelled
    second                 after so long -> |-----|--------- ... ->  is cancelled, or answers

It is for requests that a slow worker would keep waiting, and costs a second prefill: so it is off unless the
settings say otherwise, comes out of the same budget as retries, and is not done for long prompts, for what runs in
the background, for tenants whose limits would not bear the same request twice, or past anybody who waits, for any
model of the worker and at any gateway, batch work apart.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from gateway.quotas.quota import UNITS, Lease
from workers.adapter import WorkerAnswer, WorkerUnreachable

OUTCOMES = ("won", "lost", "failed", "left")
"""Of second legs: it answered, the first did, it brought no answer, the client left before either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedging:
    """`after_seconds`: without a first byte; None: as long as 95 of 100 first tokens take there. `outcomes`: how
    often each of OUTCOMES came about."""

    enabled: bool = False
    after_seconds: float | None = None
    prompt_tokens_max: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


def bears_twice(lease: Lease) -> bool:
    """Would its limits let the same request in once more? It is charged once all the same."""
    needs = dict(zip(UNITS, lease.reservation.cost.units, strict=True))
    return all(
        standing.remaining >= needs.get(standing.unit, 1)
        for standing in lease.standings
        if standing.limit.enforced
    )


class Opening:
    """A worker's stream on its way to its first bytes, in a task of its own."""

    __slots__ = ("stream", "task")

    def __init__(self, stream: AbstractAsyncContextManager[WorkerAnswer]) -> None:
        self.stream = stream
        self.task = asyncio.ensure_future(stream.__aenter__())

    @property
    def refused(self) -> bool:
        """Has it brought a refusal? Asked once it is done without a failure."""
        return self.task.result().status >= 400

    def failure(self) -> WorkerUnreachable | None:
        """Why it has brought nothing; asked once it is done. Whatever else it raised is raised here."""
        err = self.task.exception()
        if err is None or isinstance(err, WorkerUnreachable):
            return err
        raise err

    async def close(self) -> None:
        """Hangs up, whatever it has come to."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled() and self.task.exception() is None:
            await self.stream.__aexit__(None, None, None)


async def first_of(
    first: Opening,
    after_seconds: float,
    another: Callable[[], Awaitable[Opening | None]],
    failed: Callable[[Opening, WorkerUnreachable | None], None],
) -> Opening:
    """Whichever has the first bytes; the other is left as it is. `another`: called if there are none in time.

    `failed`: told of the one that brought nothing while the other goes on; None: the second has refused, which is
    no answer as long as the first may have one. Raises WorkerUnreachable of the last one; of the first one at once,
    if that has waited as long as anybody may.
    """
    await asyncio.wait([first.task], timeout=after_seconds)
    second = None if first.task.done() else await another()
    running = [first] if second is None else [first, second]
    while True:
        await asyncio.wait([opening.task for opening in running], return_when=asyncio.FIRST_COMPLETED)
        for opening in [one for one in running if one.task.done()]:
            err = opening.failure()
            alone = len(running) == 1
            if err is None and (alone or opening is first or not opening.refused):
                return opening
            if err is not None and (alone or (opening is first and err.timed_out)):
                raise _again(err)
            running.remove(opening)
            failed(opening, err)


def _again(err: WorkerUnreachable) -> WorkerUnreachable:
    """The same failure. What a task holds, raised where the task is held, would be a circle."""
    return WorkerUnreachable(
        str(err),
        failure=err.failure,
        timed_out=err.timed_out,
        retry_after_seconds=err.retry_after_seconds,
        limited=err.limited,
        worker=err.worker,
    )
