"""Keeps the fleet in line with what the sources report: workers join when found, and leave without losing a stream.

    found in a source --join--> suspect --answers--> up
    in none any more  --------> draining --no streams left, or drain_seconds over--> gone, its blocks forgotten

A stream that lasts longer than drain_seconds is not ended: it continues while the worker answers, and closes its
connection at its end.

If two sources report the same id, the first source counts; the settings file comes first. The last result of an
unavailable source stays in force, since a broken DNS server must not remove all workers. A worker with changed
settings leaves, and joins again when it is gone. A worker of unknown kind joins once its kind has been identified.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.discovery.source import SourceUnavailable, WorkerSource
from gateway.discovery.worker_kinds import ASK_SECONDS, WorkerKinds
from gateway.discovery.worker_registry import DRAINED_SECONDS, RedisSource, WorkerRegistry
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.settings.workers import WorkerSettings
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from workers.worker import Health

log = logging.getLogger(__name__)

WORKERS_MAX = 10_000

REST_SECONDS = 0.1
"""Pause after a query of a source, so that many changes at once become one change of the fleet."""


@dataclass(slots=True)
class _SourceState:
    """The last result of a source, and whether the source is unavailable."""

    workers: Sequence[WorkerSettings] = ()
    problem: str = ""
    """Why the source is unavailable; empty if it is available."""


class Discovery:
    """Adds workers to the fleet and removes them, as the sources report them.

    Args:
        fleet: the fleet, which has those workers of the settings already that name their kind.
        static: workers of the settings.
        sources: the other sources, the first of which wins where two report the same id.
        registry: the registry in Redis, which also lists the drained workers.
        build_worker: builds a worker from its settings.
        kinds: finds the kinds of workers that do not name theirs.
        drain_seconds: longest wait for the streams of a worker that leaves.
        clock: returns monotonic time in seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        static: Sequence[WorkerSettings],
        sources: Sequence[WorkerSource],
        registry: WorkerRegistry,
        build_worker: Callable[[WorkerSettings], Worker],
        kinds: WorkerKinds,
        *,
        drain_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._static = {WorkerId(one.id): one for one in static}
        self._sources = sources
        self.registry = registry
        self._build_worker = build_worker
        self._kinds = kinds
        self._unknown: list[WorkerSettings] = []  # workers that have not reported their kind
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._states: dict[str, _SourceState] = {source.name: _SourceState() for source in sources}
        self._joined = {worker: one for worker, one in self._static.items() if worker in fleet}
        self._leaving: dict[WorkerId, float] = {}
        self._drained: frozenset[str] = frozenset()
        self._refused: dict[WorkerId, str] = {}

    def is_static(self, worker: WorkerId) -> bool:
        """Return whether the worker is one of the settings."""
        return worker in self._static

    def settings_of(self, worker: WorkerId) -> WorkerSettings | None:
        """Return the settings of a worker; None for one that has left."""
        return self._static.get(worker) or self._joined.get(worker)

    def source_name(self, worker: WorkerId) -> str:
        """Return the name of the source that reports a worker."""
        if worker in self._static:
            return "settings"
        reporting = (
            name for name, state in self._states.items() if any(one.id == worker for one in state.workers)
        )
        return next(reporting, "nowhere any more")

    @property
    def uses_registry(self) -> bool:
        """Whether workers that register in Redis join the fleet."""
        return RedisSource.name in self._states

    @property
    def unavailable_sources(self) -> dict[str, str]:
        """The names of unavailable sources, with the reasons."""
        return {name: state.problem for name, state in self._states.items() if state.problem}

    async def query_sources(self) -> None:
        """Query all sources once and update the fleet."""
        await asyncio.gather(*(self._query(source) for source in self._sources))
        self.reconcile()
        await self._ask_kinds()

    async def run(self) -> None:
        """Follow all sources and the drained workers until this coroutine is cancelled."""
        async with asyncio.TaskGroup() as loops:
            for source in self._sources:
                loops.create_task(self._follow(source))
            loops.create_task(self._follow_drained())
            loops.create_task(self._follow_unknown())
            loops.create_task(self._compare_kinds())

    async def _follow(self, source: WorkerSource) -> None:
        while True:
            await source.wait()
            await self._query(source)
            self.reconcile()
            await asyncio.sleep(REST_SECONDS)

    async def _query(self, source: WorkerSource) -> None:
        state = self._states[source.name]
        try:
            workers = await source.find()
        except SourceUnavailable as err:
            if str(err) != state.problem:
                log.warning(
                    "%s cannot be queried for workers, and the last known workers are kept: %s",
                    source.name,
                    err,
                )
            state.problem = str(err)
            return
        if state.problem:
            log.info("%s can be queried for workers again", source.name)
        state.workers, state.problem = workers, ""

    async def _follow_drained(self) -> None:
        """Drain and resume workers as operators have ordered, and remove leaving workers without streams."""
        while True:
            seen = self.registry.changes.count
            try:
                drained = await self.registry.draining()
            except RedisDown:
                drained = self._drained
            for worker in self._fleet:
                if worker.id in self._leaving:
                    continue
                if worker.id in drained and worker.health.state is not Health.DRAINING:
                    self._fleet.drain(worker.id)
                elif worker.id in self._drained and worker.id not in drained:
                    self._fleet.resume(worker.id)
            self._drained = drained
            self.reconcile()
            await self.registry.changes.wait(seen, DRAINED_SECONDS)
            await asyncio.sleep(REST_SECONDS)

    async def _follow_unknown(self) -> None:
        """Request their kinds of workers until all have answered, also those that join later."""
        while True:
            await self._ask_kinds()
            await asyncio.sleep(ASK_SECONDS)

    async def _compare_kinds(self) -> None:
        """Compare each worker once, when it is up, with the kind that its settings name."""
        while True:
            up = [
                settings
                for worker, settings in self._joined.items()
                if worker in self._fleet and self._fleet[worker].health.state is Health.UP
            ]
            await self._kinds.compare(up)
            await asyncio.sleep(ASK_SECONDS)

    async def _ask_kinds(self) -> None:
        if self._unknown:
            await self._kinds.ask(self._unknown)
            self.reconcile()

    def reconfigure(self, static: Sequence[WorkerSettings]) -> None:
        """Replace the workers of the settings; workers that no source reports any more leave."""
        self._static = {WorkerId(one.id): one for one in static}
        self.reconcile()

    def reconcile(self) -> None:
        """Add, drain and remove workers, so that the fleet has those that the sources report."""
        reported = self._reported()
        self._kinds.keep_only(reported.values())
        self._unknown = [one for one in reported.values() if self._kinds.resolved(one) is None]
        self._fleet.expected = len(self._unknown)
        self._refused = {worker: why for worker, why in self._refused.items() if worker in reported}
        self._add_reported(reported)
        self._drain_others(reported)
        self._remove_drained()

    def _reported(self) -> dict[WorkerId, WorkerSettings]:
        """Return the workers of the settings and of all sources; of an id that two report, the first."""
        reported = dict(self._static)
        for source in self._sources:
            for one in self._states[source.name].workers:
                if len(reported) < WORKERS_MAX:
                    reported.setdefault(WorkerId(one.id), one)
        return reported

    def _add_reported(self, reported: Mapping[WorkerId, WorkerSettings]) -> None:
        """Let new workers join, and keep leaving ones that are reported again before they were removed."""
        for worker, settings in reported.items():
            if worker not in self._joined:
                self._join(worker, settings)
            elif worker in self._leaving and self._joined[worker] == settings:
                del self._leaving[worker]
                if worker not in self._drained:
                    self._fleet.resume(worker, "a source reports it again")

    def _drain_others(self, reported: Mapping[WorkerId, WorkerSettings]) -> None:
        """Drain the workers that no source reports any more, or reports with other settings."""
        for worker, settings in self._joined.items():
            if worker not in self._leaving and reported.get(worker) != settings:
                self._leaving[worker] = self._clock()
                reason = (
                    "its settings have changed" if worker in reported else "no source reports it any more"
                )
                self._fleet.drain(worker, reason)

    def _remove_drained(self) -> None:
        """Remove the leaving workers that have no streams left, or have had `drain_seconds`."""
        for worker, since in list(self._leaving.items()):
            late = self._clock() - since > self._drain_seconds
            if late or self._fleet[worker].load.streams == 0:
                del self._leaving[worker], self._joined[worker]
                self._fleet.remove(worker)

    def _join(self, worker: WorkerId, settings: WorkerSettings) -> None:
        """Let a worker join if its kind is known and its client can be built."""
        resolved = self._kinds.resolved(settings)
        if resolved is None:
            return
        try:
            made = self._build_worker(resolved)
        except (OSError, ValueError) as err:
            # Certificates may appear later than the worker, so this is tried again with every query.
            if self._refused.get(worker) != str(err):
                log.warning("worker %s cannot join: %s", worker, err)
                self._refused[worker] = str(err)
            return
        self._refused.pop(worker, None)
        self._joined[worker] = settings
        self._fleet.add(made)
        if worker in self._drained:
            self._fleet.drain(worker)
