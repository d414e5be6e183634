"""This gateway as a member of the shared queue: its models, its workers' loads, its waiting rooms."""

from collections.abc import Collection, Iterable, Sequence

from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import Loads
from gateway.fleet.worker import Worker
from gateway.queueing.shared.keys import model_of, queue_of
from gateway.queueing.shared.queue_members import Debts
from gateway.queueing.shared.shard_layout import ShardLayout
from gateway.queueing.waiters import Placed
from gateway.queueing.waiting_rooms import WaitingRooms
from policies.others_load import NO_TOTALS
from radix_cache.match import WorkerId

MODELS_MAX = 64
"""The most models with queues in one call."""


class QueuePeer:
    """This gateway as a member of the shared queue; see QueueMember."""

    def __init__(self, fleet: Fleet, rooms: WaitingRooms[Placed]) -> None:
        self._fleet = fleet
        self._rooms = rooms

    def queues(self, beside: str | None = None) -> Sequence[str]:
        """Return all queues, or those that share workers with the queue `beside`."""
        models = self._models() if beside is None else self._fleet.models_beside(model_of(beside))
        models = sorted(models)[:MODELS_MAX]
        return [*models, *(queue_of(model, background=True) for model in models)]

    def worker_ids(self) -> Collection[WorkerId]:
        """Return the workers of the models whose turns are decided together."""
        return {worker.id for worker in self._workers()}

    def update_others(self, loads: Loads, *, all_workers: bool) -> None:
        """Take over the loads of the other gateways; with `all_workers`, they have none on any other worker."""
        if all_workers:
            for worker in self._workers():
                worker.load.update_others(loads.get(worker.id, NO_TOTALS))
            return
        for identity, load in loads.items():
            known = self._fleet.get(identity)
            if known is not None:
                known.load.update_others(load)

    def forget_others(self) -> None:
        """Forget the loads of the other gateways: they are not reported any more."""
        for worker in self._workers():
            worker.load.forget_others()

    def adopt_tag(self, queue: str, tenant: str, virtual_time: float, finish: float) -> None:
        """Keep a tenant's tag as Redis has it, in case Redis goes away."""
        self._rooms.of(queue).adopt(tenant, virtual_time, finish)

    def debts(self) -> Debts:
        """Return what was given here since the tags were adopted."""
        return [
            (queue, tenant, units)
            for queue, room in self._rooms.all().items()
            if self._decides(queue)
            for tenant, units in room.debts().items()
            if self._decides_on(queue, tenant)
        ]

    def queue_moved(self) -> None:
        """Make all waiting requests enter the queue again: it has moved, to Redis or to this process."""
        for queue, room in self._rooms.all().items():
            if self._decides(queue):
                room.move()

    def _models(self) -> Iterable[str]:
        """Return the models whose turns are decided together."""
        return self._fleet.models_beside(None)

    def _workers(self) -> Iterable[Worker]:
        """Return the workers of these models."""
        return self._fleet

    def _decides(self, queue: str) -> bool:
        """Return whether a queue is that of one of these models."""
        return True

    def _decides_on(self, queue: str, tenant: str) -> bool:
        """Return whether the tenant's requests in a queue of these models are decided on here."""
        return True


class ShardPeer(QueuePeer):
    """This gateway as a member of one shard of the shared queue: with the models of the shard alone."""

    def __init__(self, fleet: Fleet, rooms: WaitingRooms[Placed], *, shard: int, layout: ShardLayout) -> None:
        super().__init__(fleet, rooms)
        self._shard = shard
        self._layout = layout

    def _models(self) -> Iterable[str]:
        return (model for model, group in self._fleet.groups.models() if self._has_group(group))

    def _workers(self) -> Iterable[Worker]:
        groups = self._fleet.groups.workers()
        return (worker for group, workers in groups if self._has_group(group) for worker in workers)

    def _decides(self, queue: str) -> bool:
        return self._has_group(self._fleet.groups.of(model_of(queue)))

    def _decides_on(self, queue: str, tenant: str) -> bool:
        return self._layout.shard_of(queue, tenant) == self._shard

    def _has_group(self, group: str) -> bool:
        return self._layout.has_group(self._shard, group)
