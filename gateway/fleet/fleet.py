"""The fleet: every worker, its health, its load, its speed; and the loop that probes them."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gateway.fleet.speeds import FleetSpeeds, LearntSpeed
from gateway.fleet.worker import Worker
from radix_cache.match import WorkerId
from workers.adapter import Failure, WorkerReport, WorkerUnreachable
from workers.probing.health import HealthState
from workers.worker import Health

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
PROBE_SECONDS_NOT_UP = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvents:
    """Who is told what.

    `room`: a worker may have room again. `emptied`: its cache may be lost. `reported`: what it says of itself, its
    instance included: another one than before has another cache. `gone`: it is no more of the fleet. `rests`: a
    provider wants to be asked for nothing for so many seconds.
    """

    room: Callable[[], None]
    emptied: Callable[[WorkerId], None]
    reported: Callable[[Worker], None]
    gone: Callable[[WorkerId], None]
    rests: Callable[[WorkerId, float], None] = lambda worker, seconds: None


class Fleet:
    """`clock`: seconds, never backwards."""

    def __init__(
        self, workers: Iterable[Worker], events: FleetEvents, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._speeds = FleetSpeeds()
        self._workers = {worker.id: worker for worker in workers}
        self._events = events
        self._group: asyncio.TaskGroup | None = None
        self._probes: dict[WorkerId, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._workers

    def __getitem__(self, worker: WorkerId) -> Worker:
        return self._workers[worker]

    @property
    def complete(self) -> bool:
        """Is it known of every worker what it serves?"""
        return all(worker.models_fixed or worker.reported for worker in self._workers.values())

    def serving(self, model: str) -> list[Worker]:
        """Workers of our own that may get a new request for this model.

        A circuit leaves nobody without a worker: if no other is there, those serve whose probes are answered.
        """
        there = [w for w in self._workers.values() if model in w.models and w.provider is None]
        return [w for w in there if w.able] or [
            w for w in there if (w.health.open or w.health.trial) and not w.report.asleep
        ]

    def context_length(self, model: str) -> int | None:
        """Longest prompt and answer together that a worker of our own takes; None where none says."""
        told = (w.report.contexts.get(model) for w in self._workers.values() if w.provider is None)
        return max((length for length in told if length is not None), default=None)

    def providers(self, model: str, *, resting: bool = False) -> list[Worker]:
        """Those that may get a new request for this model, where its tenant consents. `resting`: or may later."""
        there = [w for w in self._workers.values() if w.provider is not None and model in w.models and w.able]
        return there if resting else [worker for worker in there if worker.rests_until <= self.now()]

    def now(self) -> float:
        """Seconds, never backwards."""
        return self._clock()

    def rest(self, worker: WorkerId, seconds: float) -> None:
        """A provider wants to be asked for nothing for so long, as it, or another gateway, says."""
        resting = self._workers.get(worker)
        if resting is None or resting.provider is None:
            return
        until = self.now() + min(seconds, resting.provider.rest_seconds_max)
        if until > resting.rests_until:
            resting.rests_until = until

    def answered(self, worker: Worker) -> None:
        """It gave an answer of any kind."""
        if worker.health.health is not Health.UP:
            self._move(worker, worker.health.answered(), "it answers")

    def ended(self, worker: Worker) -> None:
        """An answer of its came to its end, or its client left."""
        worker.health = worker.health.ended()

    def broke(self, worker: Worker) -> None:
        """An answer broke off."""
        worker.failures += 1
        self._failed(worker, "an answer broke off")

    def failed(self, worker: Worker, cause: WorkerUnreachable) -> None:
        """A request did not get an answer."""
        if cause.failure is Failure.BUSY:
            log.debug("worker %s is busy: %s", worker.id, cause)
            seconds = worker.provider.rest_seconds(cause) if worker.provider is not None else 0.0
            if seconds:
                log.info("provider %s rests for %g seconds: %s", worker.id, seconds, cause)
                self.rest(worker.id, seconds)
                self._events.rests(worker.id, seconds)
            return
        worker.failures += 1
        log.warning("worker %s did not answer: %s", worker.id, cause)
        if cause.failure is Failure.ILL:
            self._failed(worker, str(cause))

    def at_fault(self, worker: Worker, cause: WorkerUnreachable) -> None:
        """A failure that was unclear was its own: another worker has answered the same request."""
        self._failed(worker, f"{cause}, where another worker answered")

    def first_token(self, worker: Worker, *, tokens: int, ttft_ms: float) -> None:
        """A first token came `ttft_ms` after dispatch, with so many uncached tokens ahead and own."""
        self._speeds.first_token(
            worker.models, worker.learnt, self._fellows(worker), tokens=tokens, ttft_ms=ttft_ms
        )

    def step(self, worker: Worker, tpot_ms: float) -> None:
        """A stream's tokens came so far apart on average."""
        self._speeds.step(worker.models, worker.learnt, self._fellows(worker), tpot_ms=tpot_ms)

    def told_speed(self, worker: Worker, ms_per_token: float) -> None:
        """Its engine says what an uncached prompt token has taken it."""
        self._speeds.told(worker.models, worker.learnt, ms_per_token)

    def _fellows(self, worker: Worker) -> Iterator[LearntSpeed]:
        return (other.learnt for other in self._workers.values() if other.models == worker.models)

    def warn_of_shared_caches(self) -> None:
        """Tenants are to be kept apart: says which workers' kinds cannot do that."""
        shared = [f"{worker.id} ({worker.kind})" for worker in self if not worker.adapter.isolates]
        if shared:
            log.warning(
                "tenants share the prefix cache of workers whose kind cannot isolate: %s", ", ".join(shared)
            )

    async def run(self) -> None:
        """Probes every worker for as long as it is not cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for worker in self._workers.values():
                    self._start_probing(worker)
                # Workers may come later.
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            self._probes.clear()

    def add(self, worker: Worker) -> None:
        """A worker joins; it is probed at once."""
        self._workers[worker.id] = worker
        log.info("worker %s (%s) joins", worker.id, worker.kind)
        if self._group is not None:
            self._start_probing(worker)

    def remove(self, worker: WorkerId) -> None:
        """A worker leaves: its connections are closed, and what it cached is forgotten."""
        leaving = self._workers.pop(worker)
        log.info("worker %s (%s) has left", worker, leaving.kind)
        if (probing := self._probes.pop(worker, None)) is not None:
            probing.cancel()
        leaving.adapter.close()
        self._events.gone(worker)
        self._events.room()

    def _start_probing(self, worker: Worker) -> None:
        assert self._group is not None
        self._probes[worker.id] = self._group.create_task(self._probe_forever(worker))

    async def _probe_forever(self, worker: Worker) -> None:
        while True:
            await self.probe(worker)
            up = worker.health.health is Health.UP
            await asyncio.sleep(PROBE_SECONDS if up else PROBE_SECONDS_NOT_UP)

    async def probe(self, worker: Worker) -> None:
        """Asks once; what it says of itself is taken over."""
        try:
            self._take_over(worker, await worker.adapter.probe())
        except WorkerUnreachable as err:
            self._in_trouble(worker, str(err))
        # Whatever an adapter or a report does: it is this worker's failure, and the others are probed on.
        except Exception as err:
            trouble = f"{type(err).__name__}: {err}"
            if trouble != worker.trouble:
                log.exception("the probe of worker %s failed unexpectedly", worker.id)
            self._in_trouble(worker, trouble)
        else:
            worker.trouble = ""
            self._move(worker, worker.health.probed(self._clock()), "its probes are answered")

    def _take_over(self, worker: Worker, report: WorkerReport) -> None:
        if worker.report.instance not in (None, report.instance):
            log.warning("worker %s has restarted, or emptied its cache", worker.id)
            worker.began_at = self._clock()
            worker.shapes.forget()
        slept = worker.report.asleep
        worker.report, worker.reported = report, True
        if slept != report.asleep:
            self._slept_or_woke(worker)
        worker.load.reported(report.load)
        if not worker.models_fixed:
            worker.models = frozenset(report.models)
        self._speeds.joined(worker.models, worker.learnt)
        self._events.reported(worker)

    def _slept_or_woke(self, worker: Worker) -> None:
        """Its cache is gone with its memory; awake, it begins as one that has just joined."""
        log.info("worker %s %s", worker.id, "sleeps" if worker.report.asleep else "is awake again")
        worker.began_at = self._clock()
        self._events.emptied(worker.id)
        self._events.room()

    def _in_trouble(self, worker: Worker, trouble: str) -> None:
        """A probe failed. What is still the same is not said again."""
        was_down, news = worker.health.health is Health.DOWN, trouble != worker.trouble
        worker.trouble = trouble
        self._move(worker, worker.health.probe_failed(), trouble)
        if was_down and news:
            log.warning("worker %s is still down: %s", worker.id, trouble)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.adapter.close()

    def drain(self, worker: WorkerId) -> None:
        """No more requests go there."""
        self._move(self._workers[worker], self._workers[worker].health.drained(), "an operator says so")

    def resume(self, worker: WorkerId) -> None:
        """Draining is taken back."""
        self._move(self._workers[worker], self._workers[worker].health.resumed(), "an operator says so")

    def _failed(self, worker: Worker, reason: str) -> None:
        self._move(worker, worker.health.failed(self._clock()), reason)

    def _move(self, worker: Worker, state: HealthState, reason: str) -> None:
        before, worker.health = worker.health, state
        if before.health is state.health:
            return
        if state.routable and (worker.began_at is None or before.health is Health.DOWN):
            worker.began_at = self._clock()
        if state.open:
            worker.openings += 1
            reason = f"{reason}; too many of its requests fail"
        down = state.health is Health.DOWN
        level = logging.WARNING if down else logging.INFO
        log.log(level, "worker %s: %s, was %s: %s", worker.id, state.health, before.health, reason)
        if down:
            worker.shapes.forget()
        if down and worker.report.instance is None:
            # It may come back with an empty cache, and its kind does not say so.
            self._events.emptied(worker.id)
        if down and not state.open and all(self.serving(model) for model in worker.models):
            # Others can answer what it has not begun to answer. Where nobody can, it may yet come back.
            worker.adapter.abandon()
        # A worker that is back has room; one that is gone may leave nothing to wait for.
        self._events.room()
