"""Finds workers: by their ids, and by the models that they serve.

The workers of a model are looked up once and kept, so that a request does not go through all workers. They are
looked up again when a worker joins, leaves, or changes its health, its models or its sleep. A LoRA adapter is a
model here like any other; its parent is in gateway/models/catalogue.py.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from random import Random

from gateway.fleet.model_groups import ModelGroups
from gateway.fleet.worker import Worker
from policies.load_order.least_loaded import RANKED_MAX, LeastLoaded
from radix_cache.match import WorkerId
from workers.worker import Health


class WorkerLookup:
    """The workers of a gateway, found by id or by model."""

    def __init__(self, workers: Iterable[Worker], clock: Callable[[], float], random: Random) -> None:
        """`clock`: seconds, never backwards. `random` decides the order of workers with equal load."""
        self._clock = clock
        self._random = random
        self._workers = {worker.id: worker for worker in workers}
        self._was_complete = False
        self._routable: dict[str, tuple[list[Worker], bool]] = {}
        """By model: the workers that may get new requests, and whether one of them is on trial."""
        self._least_loaded: dict[str, LeastLoaded[Worker]] = {}
        self._beside: dict[str | None, frozenset[str]] = {}
        self._groups: ModelGroups | None = None
        self._context_lengths: dict[str, int | None] = {}
        self.expected = 0
        """Number of workers that will join when they have reported their kind."""

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
        model gets an error that says so, whatever worker is down.
        """
        if all(worker.models_known for worker in self._workers.values()) and not self.expected:
            self._was_complete = True
            return True
        return self._was_complete and all(
            worker.models_known or worker.health.state is Health.DOWN for worker in self._workers.values()
        )

    def serving(self, model: str) -> list[Worker]:
        """Return the workers of our own that may get a new request for this model.

        These are the `able` ones: awake, up or suspect, and, if on trial, without a request. If there is none, the
        awake ones with an open circuit, or on trial, whose probes are answered, are tried all the same.
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

    def least_loaded(self, model: str) -> LeastLoaded[Worker] | None:
        """Return the model's workers in the order of their load; None where every request ranks all of them.

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
        """Look up again which workers serve which models."""
        self._groups = None
        self._routable.clear()
        self._beside.clear()
        self._context_lengths.clear()

    def _models_changed(self) -> None:
        """Look up again which workers serve which models, and order them again."""
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
