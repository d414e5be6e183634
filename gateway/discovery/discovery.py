"""Keeps the fleet as the sources say: workers join when they are found, and leave without losing a stream.

    found in a source --join--> suspect --answers--> up
    in none any more  --------> draining --no streams left, or too long--> gone, its blocks forgotten

Where two sources name the same id, the first one's word counts; the settings file is the first. A source that is
away changes nothing: what it said before goes on to hold. A broken DNS server is no reason to have no workers.
A worker whose settings changed leaves, and joins anew once it is gone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.discovery.source import SourceUnavailable, WorkerSource
from gateway.discovery.worker_registry import LOOK_SECONDS, RedisSource, WorkerRegistry
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.settings.workers import WorkerSettings
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from workers.worker import Health

log = logging.getLogger(__name__)

WORKERS_MAX = 10_000


@dataclass(slots=True)
class _Said:
    """What a source said last, and whether it is away."""

    workers: Sequence[WorkerSettings] = ()
    away: str = ""


class Discovery:
    """`run` for as long as the gateway lives. `static`: workers of the settings.

    `worker`: makes one of its settings. `drain_seconds`: longest wait for the streams of one that leaves.
    """

    def __init__(
        self,
        fleet: Fleet,
        static: Sequence[WorkerSettings],
        sources: Sequence[WorkerSource],
        registry: WorkerRegistry,
        worker: Callable[[WorkerSettings], Worker],
        *,
        drain_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._static = {WorkerId(one.id): one for one in static}
        self._sources = sources
        self.registry = registry
        self._worker = worker
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._said: dict[str, _Said] = {source.name: _Said() for source in sources}
        self._joined = dict(self._static)  # the fleet was made with them
        self._leaving: dict[WorkerId, float] = {}
        self._drained: frozenset[str] = frozenset()
        self._refused: dict[WorkerId, str] = {}

    def is_static(self, worker: WorkerId) -> bool:
        """Does it stand in the settings?"""
        return worker in self._static

    def settings_of(self, worker: WorkerId) -> WorkerSettings | None:
        """Where it is; None for one that has left."""
        return self._static.get(worker) or self._joined.get(worker)

    def found_in(self, worker: WorkerId) -> str:
        """Who says that it is there."""
        if worker in self._static:
            return "settings"
        found = (name for name, said in self._said.items() if any(one.id == worker for one in said.workers))
        return next(found, "nowhere any more")

    @property
    def asks_registry(self) -> bool:
        """Is anybody taken up who registers in Redis?"""
        return RedisSource.name in self._said

    @property
    def away(self) -> dict[str, str]:
        """Sources that cannot say, and why."""
        return {name: said.away for name, said in self._said.items() if said.away}

    async def look(self) -> None:
        """Asks all sources once."""
        await asyncio.gather(*(self._ask(source) for source in self._sources))
        self.reconcile()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as loops:
            for source in self._sources:
                loops.create_task(self._follow(source))
            loops.create_task(self._drain())

    async def _follow(self, source: WorkerSource) -> None:
        while True:
            await asyncio.sleep(source.seconds)
            await self._ask(source)
            self.reconcile()

    async def _ask(self, source: WorkerSource) -> None:
        said = self._said[source.name]
        try:
            workers = await source.find()
        except SourceUnavailable as err:
            if str(err) != said.away:
                log.warning("the %s cannot say which workers there are: %s", source.name, err)
            said.away = str(err)
            return
        if said.away:
            log.info("the %s says again which workers there are", source.name)
        said.workers, said.away = workers, ""

    async def _drain(self) -> None:
        """Takes over whom operators drain and resume, and lets go of those whose streams have ended."""
        while True:
            try:
                drained = await self.registry.draining()
            except RedisDown:
                drained = self._drained
            for worker in self._fleet:
                if worker.id in self._leaving:
                    continue
                if worker.id in drained and worker.health.health is not Health.DRAINING:
                    self._fleet.drain(worker.id)
                elif worker.id in self._drained and worker.id not in drained:
                    self._fleet.resume(worker.id)
            self._drained = drained
            self.reconcile()
            await asyncio.sleep(LOOK_SECONDS)

    def restate(self, static: Sequence[WorkerSettings]) -> None:
        """The settings name these now: others leave, as all do that are not found any more."""
        self._static = {WorkerId(one.id): one for one in static}
        self.reconcile()

    def reconcile(self) -> None:
        """The fleet as the sources say."""
        wanted = dict(self._static)
        for source in self._sources:
            for one in self._said[source.name].workers:
                if len(wanted) < WORKERS_MAX:
                    wanted.setdefault(WorkerId(one.id), one)
        for worker, settings in wanted.items():
            if worker not in self._joined:
                self._join(worker, settings)
            elif worker in self._leaving and self._joined[worker] == settings:
                # It is back before it was gone.
                del self._leaving[worker]
                if worker not in self._drained:
                    self._fleet.resume(worker)
        self._refused = {worker: why for worker, why in self._refused.items() if worker in wanted}
        for worker, settings in self._joined.items():
            if worker not in self._leaving and wanted.get(worker) != settings:
                self._leaving[worker] = self._clock()
                self._fleet.drain(worker)
        for worker, since in list(self._leaving.items()):
            late = self._clock() - since > self._drain_seconds
            if late or self._fleet[worker].load.streams == 0:
                del self._leaving[worker], self._joined[worker]
                self._fleet.remove(worker)

    def _join(self, worker: WorkerId, settings: WorkerSettings) -> None:
        try:
            made = self._worker(settings)
        except (OSError, ValueError) as err:
            # Certificates may come later than the worker: it is tried again with every look.
            if self._refused.get(worker) != str(err):
                log.warning("worker %s cannot join: %s", worker, err)
                self._refused[worker] = str(err)
            return
        self._refused.pop(worker, None)
        self._joined[worker] = settings
        self._fleet.add(made)
        if worker in self._drained:
            self._fleet.drain(worker)
