"""This gateway as the shared queue sees it: its models, its workers' loads, its waiting rooms."""

from collections.abc import Sequence

from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import Loads
from gateway.queueing.shared.keys import model_of, queue_of
from gateway.queueing.shared.queue_members import Debts
from gateway.queueing.waiters import Placed
from gateway.queueing.waiting_rooms import WaitingRooms
from policies.others_load import NO_TOTALS

MODELS_MAX = 64
"""Models that one call looks at the queues of."""


class QueuePeer:
    """This gateway as the shared queue sees it; see QueueMember."""

    def __init__(self, fleet: Fleet, rooms: WaitingRooms[Placed]) -> None:
        self._fleet = fleet
        self._rooms = rooms

    def queues(self, beside: str | None = None) -> Sequence[str]:
        """Return all queues, or those that share workers with the queue `beside`."""
        model = model_of(beside) if beside is not None else None
        models = sorted(self._fleet.models_beside(model))[:MODELS_MAX]
        return [*models, *(queue_of(model, background=True) for model in models)]

    def update_others(self, loads: Loads, *, all_workers: bool) -> None:
        """Take over the loads of the other gateways; with `all_workers`, they have none on any other worker."""
        if all_workers:
            for worker in self._fleet:
                worker.load.update_others(loads.get(worker.id, NO_TOTALS))
            return
        for identity, load in loads.items():
            known = self._fleet.get(identity)
            if known is not None:
                known.load.update_others(load)

    def forget_others(self) -> None:
        """Forget the loads of the other gateways: they are not reported any more."""
        for worker in self._fleet:
            worker.load.forget_others()

    def adopt_tag(self, queue: str, tenant: str, virtual_time: float, finish: float) -> None:
        """Keep a tenant's tag as Redis has it, in case Redis goes away."""
        self._rooms.of(queue).adopt(tenant, virtual_time, finish)

    def debts(self) -> Debts:
        """Return what was given here since the tags were adopted."""
        return [
            (queue, tenant, units)
            for queue, room in self._rooms.all().items()
            for tenant, units in room.debts().items()
        ]

    def queue_moved(self) -> None:
        """Have all waiting requests ask anew: the queue is kept elsewhere from now on."""
        for room in self._rooms.all().values():
            room.move()
