"""QueueMember: the interface of a gateway that takes part in the shared queue."""

from collections.abc import Collection, Sequence
from typing import Protocol

from gateway.fleet.loads import Loads
from radix_cache.match import WorkerId

Debts = Sequence[tuple[str, str, float]]
"""(queue, tenant, units over weight): how far a tenant is ahead of the virtual time."""


class QueueMember(Protocol):
    """A gateway that takes part in the shared queue."""

    def queues(self, beside: str | None = None) -> Sequence[str]:
        """Return all queues, or those that share workers with the queue `beside`."""
        ...

    def worker_ids(self) -> Collection[WorkerId]:
        """Return the workers of the models whose turns are decided together."""
        ...

    def update_others(self, loads: Loads, *, all_workers: bool) -> None:
        """Take over the loads of the other gateways; with `all_workers`, they have none on any other worker."""
        ...

    def forget_others(self) -> None:
        """Forget the loads of the other gateways: they are not reported any more."""
        ...

    def adopt_tag(self, queue: str, tenant: str, virtual_time: float, finish: float) -> None:
        """Keep a tenant's tag as Redis has it, in case Redis goes away."""
        ...

    def debts(self) -> Debts:
        """Return what was given here since the tags were adopted."""
        ...

    def queue_moved(self) -> None:
        """Make all waiting requests enter the queue again: it has moved, to Redis or to this process."""
        ...
