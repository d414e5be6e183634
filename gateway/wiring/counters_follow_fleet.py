"""Drops what is counted for workers that have left the fleet: pods come and go for months."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from radix_cache.match import WorkerId


class CountersFollowFleet:
    """Notifies counters of the workers in the fleet, each time that one has left; see FleetListener.

    All that are absent are dropped, not only the one that has left: an answer that ends after its worker has left
    is counted under the worker's name once more, and that is dropped when the next worker leaves.
    """

    def __init__(self, fleet: Fleet, *keep_workers: Callable[[AbstractSet[str]], None]) -> None:
        """`keep_workers`: called with the ids of the workers in the fleet."""
        self._fleet = fleet
        self._keep_workers = keep_workers

    def capacity_freed(self) -> None:
        """Do nothing: counters only grow while a worker is in the fleet."""

    def cache_lost(self, worker: WorkerId) -> None:
        """Do nothing: what was counted stays."""

    def reported(self, worker: Worker) -> None:
        """Do nothing: requests are counted, not reports."""

    def left(self, worker: WorkerId) -> None:
        """Drop what is counted for workers that are not in the fleet."""
        present = frozenset(each.id for each in self._fleet)
        for keep in self._keep_workers:
            keep(present)

    def provider_rests(self, worker: WorkerId, seconds: float) -> None:
        """Do nothing: a provider that rests stays in the fleet."""
