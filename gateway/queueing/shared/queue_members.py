"""Household: the promise of whoever has waiting rooms and workers, towards the shared queue."""

from collections.abc import Sequence
from typing import Protocol

from gateway.queueing.shared.store import Loads

Debts = Sequence[tuple[str, str, float]]
"""(queue, tenant, units over weight): how far a tenant is ahead of the virtual time."""


class Household(Protocol):
    """What the shared queue has to know of its gateway, and tells it."""

    def queues(self, beside: str | None = None) -> Sequence[str]:
        """All; or those whose workers also serve this one."""
        ...

    def others(self, loads: Loads, *, all_workers: bool) -> None:
        """What the other gateways have at these workers; with `all_workers`, at no others."""
        ...

    def tags(self, queue: str, tenant: str, virtual_time: float, finish: float) -> None:
        """As they are in Redis, should it go away."""
        ...

    def debts(self) -> Debts:
        """What was given here since the tags above were told."""
        ...

    def moved(self) -> None:
        """The queue is kept elsewhere from now on: whoever waits asks anew."""
        ...
