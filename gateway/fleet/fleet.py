"""The fleet: every worker with its health, load and speed, and the loop that probes the workers."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from random import Random
from typing import Protocol

from gateway.fleet.least_loaded import LeastLoaded
from gateway.fleet.model_groups import ModelGroups
from gateway.fleet.stalls import StallDetector
from gateway.fleet.worker import Worker
from policies.speeds import FleetSpeeds
from radix_cache.match import WorkerId
from workers.adapter import FailureKind, WorkerReport, WorkerUnreachable
from workers.probing.health import HealthState
from workers.worker import Health

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
PROBE_SECONDS_NOT_UP = 0.5

ENGINE_KINDS = frozenset({"sglang", "vllm", "embedded"})

RANKED_MAX = 32
"""Of more workers than this, a request is ranked on a shortlist."""


class FleetListener(Protocol):
    """What the fleet notifies of its workers."""

    def room_made(self) -> None:
        """Handle that a worker may have room for a request again."""
        ...

    def cache_lost(self, worker: WorkerId) -> None:
        """Handle that a worker's cache may be lost."""
        ...

    def reported(self, worker: Worker) -> None:
        """Handle a probe's report. Another instance than before has another cache."""
        ...

    def left(self, worker: WorkerId) -> None:
        """Handle that a worker has left the fleet."""
        ...

    def provider_rests(self, worker: WorkerId, seconds: float) -> None:
        """Handle that a provider asks for no requests for so many seconds."""
        ...


class Fleet:
    """All workers of this gateway."""

    def __init__(
        self,
        workers: Iterable[Worker],
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        """`clock`: seconds, never backwards. `random` decides the order of workers with equal load."""
        self._clock = clock
        self._random = random if random is not None else Random()
        self._speeds = FleetSpeeds()
        self._workers = {worker.id: worker for worker in workers}
        self._was_complete = False
        self._listeners: list[FleetListener] = []
        self._group: asyncio.TaskGroup | None = None
        self._probes: dict[WorkerId, asyncio.Task[None]] = {}
        # By model: the workers that may get new requests, and whether one of them is on trial. Cleared when the
        # health, the models or the sleep of any worker change, so that a request does not look at all workers.
        self._routable: dict[str, tuple[list[Worker], bool]] = {}
        self._least_loaded: dict[str, LeastLoaded] = {}
        self._beside: dict[str | None, frozenset[str]] = {}
        self._groups: ModelGroups | None = None
        self._context_lengths: dict[str, int | None] = {}
        self.expected = 0
        """Number of workers that will join when they have told their kind."""

    def subscribe(self, listener: FleetListener) -> None:
        """Notify this listener from now on."""
        self._listeners.append(listener)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._workers

    def __getitem__(self, worker: WorkerId) -> Worker:
        return self._workers[worker]

    def models_of(self, worker: WorkerId) -> frozenset[str]:
        """Return the models that a worker serves."""
        return self._workers[worker].models

    def adapters_of(self, worker: WorkerId) -> Collection[str]:
        """Return the LoRA adapters that a worker reports."""
        return self._workers[worker].report.parents.keys()

    def get(self, worker: WorkerId) -> Worker | None:
        """Return the worker of this id, or None if it is not in the fleet."""
        return self._workers.get(worker)

    @property
    def complete(self) -> bool:
        """Whether the models of every worker are known.

        Once they were, a worker that has never reported and is down is not waited for: a client that misspells a
        model is told so, whatever worker is down.
        """
        known = [worker.models_fixed or worker.reported for worker in self._workers.values()]
        if all(known) and not self.expected:
            self._was_complete = True
            return True
        return self._was_complete and all(
            worker.models_fixed or worker.reported or worker.health.health is Health.DOWN
            for worker in self._workers.values()
        )

    def serving(self, model: str) -> list[Worker]:
        """Return the workers of our own that may get a new request for this model.

        An open circuit leaves no model without a worker: if there is no other, the workers whose probes are
        answered serve on.
        """
        known = self._routable.get(model)
        if known is None:
            known = self._routable[model] = self._find_routable(model)
        workers, on_trial = known
        able = [worker for worker in workers if worker.able] if on_trial else workers
        return able or [
            worker
            for worker in self._workers.values()
            if model in worker.models
            and worker.provider is None
            and (worker.health.circuit_open or worker.health.on_trial)
            and not worker.report.asleep
        ]

    def least_loaded(self, model: str) -> LeastLoaded | None:
        """Return the model's workers in the order of their load; None where every request looks at all of them.

        That is where at most RANKED_MAX workers may get a new request, or where workers are halves of pairs.
        """
        known = self._routable.get(model)
        if known is None or len(known[0]) <= RANKED_MAX:
            return None
        found = self._least_loaded.get(model)
        if found is None:
            workers = [w for w in self._workers.values() if model in w.models and w.provider is None]
            found = self._least_loaded[model] = LeastLoaded(model, workers, self._random)
        found.update(self._clock())
        return found if found.able > RANKED_MAX and not found.halves else None

    def models_beside(self, model: str | None) -> frozenset[str]:
        """Return the models of our own workers that serve `model`, itself included; of all our workers for None."""
        found = self._beside.get(model)
        if found is None:
            ours = (worker for worker in self._workers.values() if worker.provider is None)
            serving = (worker for worker in ours if model is None or model in worker.models)
            found = self._beside[model] = frozenset(each for worker in serving for each in worker.models)
        return found

    @property
    def groups(self) -> ModelGroups:
        """The groups of models that share workers of our own; the same object until a worker's models change."""
        if self._groups is None:
            self._groups = ModelGroups(worker for worker in self._workers.values() if worker.provider is None)
        return self._groups

    def _members_changed(self) -> None:
        """Look up anew which workers serve which models."""
        self._groups = None
        self._routable.clear()
        self._beside.clear()
        self._context_lengths.clear()

    def _models_changed(self) -> None:
        """Look up anew which workers serve which models, and keep their order anew."""
        self._members_changed()
        for ordered in self._least_loaded.values():
            ordered.close()
        self._least_loaded.clear()

    def _find_routable(self, model: str) -> tuple[list[Worker], bool]:
        found = [
            worker
            for worker in self._workers.values()
            if model in worker.models
            and worker.provider is None
            and worker.health.routable
            and not worker.report.asleep
        ]
        return found, any(worker.health.on_trial for worker in found)

    def context_length(self, model: str) -> int | None:
        """Return the longest context in tokens that a worker of our own reports; None if none reports one."""
        if model not in self._context_lengths:
            found = (
                w.report.context_lengths.get(model) for w in self._workers.values() if w.provider is None
            )
            longest = max((length for length in found if length is not None), default=None)
            self._context_lengths[model] = longest
        return self._context_lengths[model]

    def providers(self, model: str, *, resting: bool = False) -> list[Worker]:
        """Return the providers that may get a new request for this model; with `resting`, also those that rest."""
        there = [w for w in self._workers.values() if w.provider is not None and model in w.models and w.able]
        return there if resting else [worker for worker in there if worker.rests_until <= self.now()]

    def now(self) -> float:
        """Return the time of the fleet's clock in seconds, never backwards."""
        return self._clock()

    def rest(self, worker: WorkerId, seconds: float) -> None:
        """Send a provider no requests for so long, as the provider or another gateway asks."""
        resting = self._workers.get(worker)
        if resting is None or resting.provider is None:
            return
        until = self.now() + min(seconds, resting.provider.rest_seconds_max)
        if until > resting.rests_until:
            resting.rests_until = until

    def answered(self, worker: Worker) -> None:
        """Note that a worker gave an answer of any kind."""
        if worker.health.health is not Health.UP:
            self._move(worker, worker.health.answer_began(), "it answers")

    def ended(self, worker: Worker) -> None:
        """Note that an answer came to its end, or that its client left."""
        if worker.health.strain:
            worker.health = worker.health.answer_ended()

    def broke(self, worker: Worker) -> None:
        """Note that an answer broke off."""
        worker.failures += 1
        self._failed(worker, "an answer broke off")

    def failed(self, worker: Worker, cause: WorkerUnreachable) -> None:
        """Note that a request got no answer."""
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
            self._failed(worker, str(cause))

    def at_fault(self, worker: Worker, cause: WorkerUnreachable) -> None:
        """Blame a worker for an unclear failure: another worker has answered the same request."""
        self._failed(worker, f"{cause}, where another worker answered")

    def stalled(self, worker: Worker, seconds: float) -> None:
        """Note that nothing has come from a worker for so long, while requests and a probe waited."""
        reason = f"nothing has come from it for {seconds:g} seconds, not even the answer to a probe"
        self._move(worker, worker.health.stalled(), reason)

    def is_dispensable(self, worker: Worker) -> bool:
        """Return whether other workers can serve what this one does not."""
        return all(any(other is not worker for other in self.serving(model)) for model in worker.models)

    def first_token(self, worker: Worker, *, tokens: int, ttft_ms: float) -> None:
        """Learn from a first token that came `ttft_ms` after dispatch, with `tokens` uncached tokens to compute."""
        self._speeds.first_token(worker.models, worker.learnt, tokens=tokens, ttft_ms=ttft_ms)

    def step(self, worker: Worker, tpot_ms: float) -> None:
        """Learn from a stream whose tokens came `tpot_ms` apart on average."""
        self._speeds.step(worker.models, worker.learnt, tpot_ms=tpot_ms)

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

    def add(self, worker: Worker) -> None:
        """Let a worker join; it is probed at once."""
        self._workers[worker.id] = worker
        self._members_changed()
        for model, ordered in self._least_loaded.items():
            if model in worker.models and worker.provider is None:
                ordered.add(worker)
        log.info("worker %s (%s) joins", worker.id, worker.kind)
        if self._group is not None:
            self._start_probing(worker)

    def remove(self, worker: WorkerId) -> None:
        """Let a worker leave: close its connections and forget what it cached."""
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
            listener.room_made()

    def _start_probing(self, worker: Worker) -> None:
        assert self._group is not None
        self._probes[worker.id] = self._group.create_task(self._probe_forever(worker))

    async def _probe_forever(self, worker: Worker) -> None:
        while True:
            await self.probe(worker)
            up = worker.health.health is Health.UP
            await asyncio.sleep(PROBE_SECONDS if up else PROBE_SECONDS_NOT_UP)

    async def probe(self, worker: Worker) -> None:
        """Probe a worker once and take over its report."""
        try:
            self._take_over(worker, await worker.adapter.probe())
        except WorkerUnreachable as err:
            self._in_trouble(worker, str(err))
        # Whatever goes wrong in an adapter or a report is this worker's failure: the others are probed on.
        except Exception as err:
            trouble = f"{type(err).__name__}: {err}"
            if trouble != worker.trouble:
                log.exception("the probe of worker %s failed unexpectedly", worker.id)
            self._in_trouble(worker, trouble)
        else:
            worker.trouble = ""
            state = worker.health.probe_answered(self._clock(), idle=not worker.load.streams)
            self._move(worker, state, "its probes are answered")

    def _take_over(self, worker: Worker, report: WorkerReport) -> None:
        if worker.report.instance_id not in (None, report.instance_id):
            log.warning("worker %s has restarted, or emptied its cache", worker.id)
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
        worker.load.reported(report.load)
        for changed in worker.load.on_change:
            changed()
        self._speeds.joined(worker.models, worker.learnt)
        for listener in self._listeners:
            listener.reported(worker)

    def _slept_or_woke(self, worker: Worker) -> None:
        """Treat the cache as lost: a sleeping engine gives its memory away, and begins anew when it wakes."""
        log.info("worker %s %s", worker.id, "sleeps" if worker.report.asleep else "is awake again")
        worker.began_at = self._clock()
        for listener in self._listeners:
            listener.cache_lost(worker.id)
        for listener in self._listeners:
            listener.room_made()

    def _in_trouble(self, worker: Worker, trouble: str) -> None:
        """Note a failed probe; log only what is new."""
        was_down, news = worker.health.health is Health.DOWN, trouble != worker.trouble
        worker.trouble = trouble
        self._move(worker, worker.health.probe_failed(), trouble)
        if was_down and news:
            log.warning("worker %s is still down: %s", worker.id, trouble)

    def close(self) -> None:
        """Close the connections to all workers."""
        for worker in self._workers.values():
            worker.adapter.close()

    def drain(self, worker: WorkerId) -> None:
        """Send a worker no new requests."""
        self._move(self._workers[worker], self._workers[worker].health.drained(), "an operator asked for it")

    def resume(self, worker: WorkerId) -> None:
        """Send a drained worker new requests again."""
        self._move(self._workers[worker], self._workers[worker].health.resumed(), "an operator asked for it")

    def _failed(self, worker: Worker, reason: str) -> None:
        self._move(worker, worker.health.request_failed(self._clock()), reason)

    def _move(self, worker: Worker, state: HealthState, reason: str) -> None:
        before, worker.health = worker.health, state
        if before.routable is not state.routable or before.on_trial is not state.on_trial:
            self._routable.clear()
            for changed in worker.load.on_change:
                changed()
        if before.health is state.health:
            return
        if state.routable and (worker.began_at is None or before.health is Health.DOWN):
            worker.began_at = self._clock()
        if state.circuit_open:
            worker.openings += 1
            reason = f"{reason}; too many of its requests fail"
        down = state.health is Health.DOWN
        level = logging.WARNING if down else logging.INFO
        log.log(level, "worker %s: %s, was %s: %s", worker.id, state.health, before.health, reason)
        if down:
            worker.response_shapes.forget()
        if down and worker.report.instance_id is None:
            # It may come back with an empty cache, and its kind does not report that.
            for listener in self._listeners:
                listener.cache_lost(worker.id)
        if down and not state.circuit_open and self.is_dispensable(worker):
            # Other workers can serve what it has not begun to answer. Without others it may yet come back.
            worker.adapter.abandon()
        # A worker that is back has room, and requests that waited for a worker that is gone are ranked anew.
        for listener in self._listeners:
            listener.room_made()


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
