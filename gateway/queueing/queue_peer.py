"""What the shared queue knows of this gateway, and tells it: its models, its workers' loads, its waiting rooms."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.fleet.fleet import Fleet
from gateway.queueing.shared.keys import model_of, queue_of
from gateway.queueing.shared.queue_members import Debts
from gateway.queueing.shared.store import NOTHING, Loads
from gateway.queueing.waiting_room import WaitingRoom

MODELS_MAX = 64
"""Queues that one call looks at."""


class QueueHousehold:
    """See Household. `room`: the waiting room of a queue; `rooms`: those there are."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        room: Callable[[str], WaitingRoom[Any]],
        rooms: Callable[[], Mapping[str, WaitingRoom[Any]]],
    ) -> None:
        self._fleet = fleet
        self._room = room
        self._rooms = rooms

    def queues(self, beside: str | None = None) -> Sequence[str]:
        model = model_of(beside) if beside is not None else None
        ours = (worker for worker in self._fleet if worker.provider is None)
        serving = (worker for worker in ours if model is None or model in worker.models)
        models = sorted({model for worker in serving for model in worker.models})[:MODELS_MAX]
        return [*models, *(queue_of(model, background=True) for model in models)]

    def others(self, loads: Loads, *, all_workers: bool) -> None:
        for worker in self._fleet:
            load = loads.get(worker.id, NOTHING if all_workers else None)
            if load is not None:
                worker.load.told(load)

    def tags(self, queue: str, tenant: str, virtual_time: float, finish: float) -> None:
        self._room(queue).adopt(tenant, virtual_time, finish)

    def debts(self) -> Debts:
        return [
            (queue, tenant, units)
            for queue, room in self._rooms().items()
            for tenant, units in room.debts().items()
        ]

    def moved(self) -> None:
        for room in self._rooms().values():
            room.move()
