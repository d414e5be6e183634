"""The fleet: every worker, its health, its load, its speed; and the loop that probes them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gateway.dispatch.loads import WorkerLoad
from policies.latency_model import learn_prefill, learn_step
from radix_cache.match import WorkerId
from workers.adapter import WorkerAdapter, WorkerReport, WorkerUnreachable
from workers.health import HealthState
from workers.worker import Health, Speed, WorkerSnapshot

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
PROBE_SECONDS_NOT_UP = 0.5
CHUNK_TOKENS = 8192


@dataclass(slots=True)
class Worker:
    """One worker as this gateway knows it. Changed by the fleet alone."""

    id: WorkerId
    kind: str
    adapter: WorkerAdapter
    models: frozenset[str]
    models_fixed: bool
    health: HealthState = field(default_factory=HealthState)
    load: WorkerLoad = field(default_factory=WorkerLoad)
    speed: Speed = field(default_factory=Speed)
    report: WorkerReport = field(default_factory=WorkerReport)
    reported: bool = False
    failures: int = 0

    def snapshot(self) -> WorkerSnapshot:
        return WorkerSnapshot(
            id=self.id,
            health=self.health.health,
            tokens_queued=self.load.tokens_queued,
            streams=self.load.streams,
            kv_tokens=self.load.kv_tokens,
            kv_tokens_max=self.report.kv_tokens_max,
            chunk_tokens=self.report.chunk_tokens or CHUNK_TOKENS,
            speed=self.speed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvents:
    """Who is told what.

    `room`: a worker may have room again. `emptied`: its cache is lost. `reported`: what it says of itself.
    """

    room: Callable[[], None]
    emptied: Callable[[WorkerId], None]
    reported: Callable[[Worker], None]


class Fleet:
    def __init__(self, workers: Iterable[Worker], events: FleetEvents) -> None:
        self._workers = {worker.id: worker for worker in workers}
        self._events = events

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __getitem__(self, worker: WorkerId) -> Worker:
        return self._workers[worker]

    @property
    def complete(self) -> bool:
        """Is it known of every worker what it serves?"""
        return all(worker.models_fixed or worker.reported for worker in self._workers.values())

    def serving(self, model: str) -> list[Worker]:
        """Workers that may get a new request for this model."""
        return [w for w in self._workers.values() if model in w.models and w.health.routable]

    def answered(self, worker: Worker) -> None:
        """It gave an answer of any kind."""
        if worker.health.health is not Health.UP:
            self._move(worker, worker.health.answered())

    def failed(self, worker: Worker, cause: WorkerUnreachable) -> None:
        """A request did not get an answer."""
        worker.failures += 1
        log.warning("worker %s did not answer: %s", worker.id, cause)
        if cause.blame:
            self._move(worker, worker.health.failed())

    def first_token(self, worker: Worker, *, tokens: int, ttft_ms: float) -> None:
        """A first token came `ttft_ms` after dispatch, with so many uncached tokens ahead and own."""
        worker.speed = learn_prefill(worker.speed, tokens, ttft_ms)

    def step(self, worker: Worker, tpot_ms: float) -> None:
        """A stream's tokens came so far apart on average."""
        worker.speed = learn_step(worker.speed, tpot_ms)

    async def run(self) -> None:
        """Probes every worker for as long as it is not cancelled."""
        async with asyncio.TaskGroup() as probes:
            for worker in self._workers.values():
                probes.create_task(self._probe_forever(worker))

    async def _probe_forever(self, worker: Worker) -> None:
        while True:
            await self.probe(worker)
            up = worker.health.health is Health.UP
            await asyncio.sleep(PROBE_SECONDS if up else PROBE_SECONDS_NOT_UP)

    async def probe(self, worker: Worker) -> None:
        """Asks once; what it says of itself is taken over, a new instance starts with an empty cache."""
        try:
            report = await worker.adapter.probe()
        except WorkerUnreachable as err:
            log.debug("probe of worker %s: %s", worker.id, err)
            self._move(worker, worker.health.failed())
            return
        if worker.report.instance not in (None, report.instance):
            log.warning("worker %s has restarted", worker.id)
            self._events.emptied(worker.id)
        worker.report, worker.reported = report, True
        if not worker.models_fixed:
            worker.models = frozenset(report.models)
        self._events.reported(worker)
        self._move(worker, worker.health.answered())

    def close(self) -> None:
        for worker in self._workers.values():
            worker.adapter.close()

    def drain(self, worker: WorkerId) -> None:
        """No more requests go there."""
        self._move(self._workers[worker], self._workers[worker].health.drained())

    def resume(self, worker: WorkerId) -> None:
        """Draining is taken back."""
        self._move(self._workers[worker], self._workers[worker].health.resumed())

    def _move(self, worker: Worker, state: HealthState) -> None:
        before, worker.health = worker.health, state
        if before.health is state.health:
            return
        level = logging.WARNING if state.health is Health.DOWN else logging.INFO
        log.log(level, "worker %s: %s, was %s", worker.id, state.health, before.health)
        if state.health is Health.DOWN:
            # It may come back with an empty cache, and not every kind says so.
            self._events.emptied(worker.id)
        # A worker that is back has room; one that is gone may leave nothing to wait for.
        self._events.room()
