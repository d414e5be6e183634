"""The fleet: every worker with its health, load and speed, and the loop that probes the workers.

worker_lookup.py finds the workers of a model; worker_health.py has the states of a worker's health.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from gateway.fleet.stalls import StallDetector
from gateway.fleet.worker import Worker
from gateway.fleet.worker_health import WorkerHealth
from gateway.fleet.worker_lookup import WorkerLookup
from policies.speeds import FleetSpeeds
from radix_cache.match import WorkerId
from workers.adapter import FailureKind, WorkerFailed, WorkerReport
from workers.worker import Health

log = logging.getLogger(__name__)

PROBE_INTERVAL_SECONDS = 2.0
PROBE_INTERVAL_SECONDS_NOT_UP = 0.5

FIRST_PROBES_SECONDS_MAX = 3.0
"""How long the start of a gateway waits at most for the first probes of its workers."""

BY_OPERATOR = "an operator asked for it"

ENGINE_KINDS = frozenset({"sglang", "vllm", "embedded"})


class FleetListener(Protocol):
    """What the fleet notifies of its workers."""

    def capacity_freed(self) -> None:
        """Handle that a worker may have room for a request again."""
        ...

    def cache_lost(self, worker: WorkerId) -> None:
        """Handle that a worker's cache may be lost."""
        ...

    def reported(self, worker: Worker) -> None:
        """Handle a probe's report; a new instance id means that the worker's cache is empty."""
        ...

    def left(self, worker: WorkerId) -> None:
        """Handle that a worker has left the fleet."""
        ...

    def provider_rests(self, worker: WorkerId, seconds: float) -> None:
        """Handle that a provider gets no requests for so many seconds."""
        ...


class Fleet(WorkerLookup):
    """All workers of this gateway, with their health, load and speed."""

    def __init__(
        self,
        workers: Iterable[Worker],
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        """`clock`: seconds, never backwards. `random` decides the order of workers with equal load."""
        super().__init__(workers, clock, random if random is not None else Random())
        self._speeds = FleetSpeeds()
        self._listeners: list[FleetListener] = []
        self._group: asyncio.TaskGroup | None = None
        self._probes: dict[WorkerId, asyncio.Task[None]] = {}

    def subscribe(self, listener: FleetListener) -> None:
        """Notify this listener from now on."""
        self._listeners.append(listener)

    def rest(self, worker: WorkerId, seconds: float) -> None:
        """Send a provider no requests for so long, after a 429 that this or another gateway got."""
        resting = self._workers.get(worker)
        if resting is None or resting.provider is None:
            return
        until = self.now() + min(seconds, resting.provider.rest_seconds_max)
        if until > resting.rests_until:
            resting.rests_until = until

    def answer_began(self, worker: Worker) -> None:
        """Note that a worker began an answer of any kind."""
        if worker.health.state is not Health.UP:
            self._move(worker, worker.health.answer_began(), "it answers")

    def answer_ended(self, worker: Worker) -> None:
        """Note that an answer came to its end."""
        if worker.health.strain:
            worker.health = worker.health.answer_ended()

    def answer_broke_off(self, worker: Worker) -> None:
        """Note that an answer broke off."""
        worker.failures += 1
        self._count_failure(worker, "an answer broke off")

    def worker_failed(self, worker: Worker, cause: WorkerFailed) -> None:
        """Note that a worker gave a request no answer.

        A busy worker is healthy. A server error counts once another worker has answered the request: see `blame`.
        """
        if cause.failure is FailureKind.BUSY:
            log.debug("worker %s is busy: %s", worker.id, cause)
            seconds = worker.provider.rest_seconds(cause) if worker.provider is not None else 0.0
            if seconds:
                log.info("provider %s rests for %g seconds: %s", worker.id, seconds, cause)
                self.rest(worker.id, seconds)
                for listener in self._listeners:
                    listener.provider_rests(worker.id, seconds)
            return
        worker.failures += 1
        log.warning("worker %s did not answer: %s", worker.id, cause)
        if cause.failure is FailureKind.UNHEALTHY:
            self._count_failure(worker, str(cause))

    def blame(self, worker: Worker, cause: WorkerFailed) -> None:
        """Blame a worker for a server error: another worker has answered the same request."""
        self._count_failure(worker, f"{cause}, where another worker answered")

    def stalled(self, worker: Worker, seconds: float) -> None:
        """Note that nothing has come from a worker for so long, while requests and a probe waited."""
        reason = f"nothing has come from it for {seconds:g} seconds, not even the answer to a probe"
        self._move(worker, worker.health.stalled(), reason)

    def is_dispensable(self, worker: Worker) -> bool:
        """Return whether other workers can serve what this one does not."""
        return all(any(other is not worker for other in self.serving(model)) for model in worker.models)

    def learn_first_token(self, worker: Worker, *, tokens: int, ttft_ms: float) -> None:
        """Learn from a first token that came `ttft_ms` after dispatch, with `tokens` uncached tokens to compute."""
        self._speeds.learn_first_token(worker.models, worker.learnt, tokens=tokens, ttft_ms=ttft_ms)

    def learn_step(self, worker: Worker, tpot_ms: float) -> None:
        """Learn from a stream whose tokens came `tpot_ms` apart on average."""
        self._speeds.learn_step(worker.models, worker.learnt, tpot_ms=tpot_ms)

    def reported_speed(self, worker: Worker, ms_per_token: float) -> None:
        """Take over what an uncached prompt token has taken the worker, as its engine reports it."""
        self._speeds.reported(worker.models, worker.learnt, ms_per_token)

    def warn_of_shared_caches(self) -> None:
        """Log which workers cannot keep the caches of tenants apart; called where tenants are to be isolated."""
        shared = [f"{worker.id} ({worker.kind})" for worker in self if not worker.adapter.isolates]
        if shared:
            log.warning(
                "tenants share the prefix cache of workers whose kind cannot isolate: %s", ", ".join(shared)
            )

    async def run(self) -> None:
        """Probe every worker until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for worker in self._workers.values():
                    self._start_probing(worker)
                self._group.create_task(StallDetector(self).run())
                # Workers may join later.
                await asyncio.get_running_loop().create_future()
        finally:
            self._group = None
            self._probes.clear()

    async def wait_until_probed(self) -> None:
        """Wait until the first probe of each worker of this moment has ended, for FIRST_PROBES_SECONDS_MAX at most.

        `run` makes the probes, all at once.
        """
        workers = [*self]
        try:
            async with asyncio.timeout(FIRST_PROBES_SECONDS_MAX):
                for worker in workers:
                    await worker.probed.wait()
        except TimeoutError:
            slow = sum(not worker.probed.is_set() for worker in workers)
            log.warning(
                "%d of %d workers have not answered their first probe in %g seconds; the gateway starts now",
                *(slow, len(workers), FIRST_PROBES_SECONDS_MAX),
            )

    def add(self, worker: Worker) -> None:
        """Add a worker; it is probed at once."""
        self._workers[worker.id] = worker
        self._members_changed()
        for model, ordered in self._least_loaded.items():
            if model in worker.models and worker.provider is None:
                ordered.add(worker)
        log.info("worker %s (%s) joins", worker.id, worker.kind)
        if self._group is not None:
            self._start_probing(worker)

    def remove(self, worker: WorkerId) -> None:
        """Remove a worker: close its idle connections and forget what it cached; running streams continue."""
        leaving = self._workers.pop(worker)
        self._members_changed()
        for ordered in self._least_loaded.values():
            ordered.remove(worker)
        log.info("worker %s (%s) has left", worker, leaving.kind)
        if (probing := self._probes.pop(worker, None)) is not None:
            probing.cancel()
        leaving.adapter.close()
        for listener in self._listeners:
            listener.left(worker)
        for listener in self._listeners:
            listener.capacity_freed()

    def _start_probing(self, worker: Worker) -> None:
        assert self._group is not None
        self._probes[worker.id] = self._group.create_task(self._probe_forever(worker))

    async def _probe_forever(self, worker: Worker) -> None:
        while True:
            await self.probe(worker)
            up = worker.health.state is Health.UP
            await asyncio.sleep(PROBE_INTERVAL_SECONDS if up else PROBE_INTERVAL_SECONDS_NOT_UP)

    async def probe(self, worker: Worker) -> None:
        """Probe a worker once and take over its report."""
        try:
            self._take_over(worker, await worker.adapter.probe())
        except WorkerFailed as err:
            self._in_trouble(worker, str(err))
        # Whatever goes wrong in an adapter or a report is this worker's failure: the others are probed on.
        except Exception as err:
            trouble = f"{type(err).__name__}: {err}"
            if trouble != worker.trouble:
                log.exception("the probe of worker %s failed unexpectedly", worker.id)
            self._in_trouble(worker, trouble)
        else:
            worker.trouble = ""
            health = worker.health.probe_answered(self._clock(), idle=not worker.load.streams)
            self._move(worker, health, "its probes are answered")
        finally:
            worker.probed.set()

    def _take_over(self, worker: Worker, report: WorkerReport) -> None:
        if worker.report.instance_id not in (None, report.instance_id):
            log.warning("worker %s has restarted, or cleared its cache", worker.id)
            worker.began_at = self._clock()
            worker.response_shapes.forget()
        slept = worker.report.asleep
        if worker.report.engine != report.engine:
            _warn_of_other_kind(worker, report.engine)
        if worker.report.context_lengths != report.context_lengths:
            self._context_lengths.clear()
        worker.report, worker.reported = report, True
        if not worker.models_fixed and worker.models != frozenset(report.models):
            worker.models = frozenset(report.models)
            self._models_changed()
        if slept != report.asleep:
            self._routable.clear()
            self._slept_or_woke(worker)
        worker.load.update_from_probe(report.load)
        for changed in worker.load.on_change:
            changed()
        self._speeds.joined(worker.models, worker.learnt)
        for listener in self._listeners:
            listener.reported(worker)

    def _slept_or_woke(self, worker: Worker) -> None:
        """Treat the cache as lost: a sleeping engine frees its memory, and its cache is empty when it wakes."""
        log.info("worker %s %s", worker.id, "sleeps" if worker.report.asleep else "is awake again")
        worker.began_at = self._clock()
        for listener in self._listeners:
            listener.cache_lost(worker.id)
        for listener in self._listeners:
            listener.capacity_freed()

    def _in_trouble(self, worker: Worker, trouble: str) -> None:
        """Note a failed probe; log only what is new."""
        was_down, is_new = worker.health.state is Health.DOWN, trouble != worker.trouble
        worker.trouble = trouble
        self._move(worker, worker.health.probe_failed(), trouble)
        if was_down and is_new:
            log.warning("worker %s is still down: %s", worker.id, trouble)

    def close(self) -> None:
        """Close the connections to all workers."""
        for worker in self._workers.values():
            worker.adapter.close()

    def drain(self, worker: WorkerId, reason: str = BY_OPERATOR) -> None:
        """Send a worker no new requests; `reason` is logged."""
        self._move(self._workers[worker], self._workers[worker].health.drained(), reason)

    def resume(self, worker: WorkerId, reason: str = BY_OPERATOR) -> None:
        """Send a drained worker new requests again; `reason` is logged."""
        self._move(self._workers[worker], self._workers[worker].health.resumed(), reason)

    def _count_failure(self, worker: Worker, reason: str) -> None:
        self._move(worker, worker.health.request_failed(self._clock()), reason)

    def _move(self, worker: Worker, health: WorkerHealth, reason: str) -> None:
        """Give a worker this health, and notify of what that changes; `reason` is logged."""
        before, worker.health = worker.health, health
        if before.routable is not health.routable or before.on_trial is not health.on_trial:
            self._routable.clear()
            for changed in worker.load.on_change:
                changed()
        if before.state is health.state:
            return
        if health.routable and (worker.began_at is None or before.state is Health.DOWN):
            worker.began_at = self._clock()
        if health.circuit_open:
            worker.openings += 1
            reason = f"{reason}; too many of its requests fail"
        level = logging.WARNING if health.state is Health.DOWN else logging.INFO
        log.log(level, "worker %s: %s, was %s: %s", worker.id, health.state, before.state, reason)
        if health.state is Health.DOWN:
            self._went_down(worker)
        # A worker that is back has room, and requests that waited for a worker that is gone are ranked again.
        for listener in self._listeners:
            listener.capacity_freed()

    def _went_down(self, worker: Worker) -> None:
        """Forget what may have changed when the worker is up again, and fail requests without a first byte.

        They are failed only if others can serve them. Answers that have begun continue until
        gateway/fleet/stalls.py breaks them off.
        """
        worker.response_shapes.forget()
        if worker.report.instance_id is None:
            # It may come back with an empty cache, and its kind does not report that.
            for listener in self._listeners:
                listener.cache_lost(worker.id)
        if not worker.health.circuit_open and self.is_dispensable(worker):
            # Other workers can serve what it has not begun to answer. Without others, requests wait for its return.
            worker.adapter.abandon()


def _warn_of_other_kind(worker: Worker, engine: str | None) -> None:
    """Log that the engine of a worker is of another kind than the settings say.

    Any engine may be used as kind `openai`, and a plug-in may be a better client of a known engine.
    """
    if engine is not None and worker.kind in ENGINE_KINDS and worker.kind != engine:
        log.warning(
            "worker %s has the kind %s in the settings, but its list of models is that of kind %s",
            worker.id,
            worker.kind,
            engine,
        )
