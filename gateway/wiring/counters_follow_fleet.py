"""Drops what is counted for workers that have left the fleet: pods come and go for months."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from gateway.fleet.fleet import Fleet, FleetListener
from radix_cache.match import WorkerId


class CountersFollowFleet(FleetListener):
    """Notifies counters of the workers in the fleet, each time that one has left; see FleetListener.

    All that are absent are dropped, not only the one that has left: an answer that ends after its worker has left
    is counted under the worker's name once more, and that is dropped when the next worker leaves.
    """

    def __init__(self, fleet: Fleet, *keep_workers: Callable[[AbstractSet[str]], None]) -> None:
        """`keep_workers`: called with the ids of the workers in the fleet."""
        self._fleet = fleet
        self._keep_workers = keep_workers

    def left(self, worker: WorkerId) -> None:
        """Drop what is counted for workers that are not in the fleet."""
        present = frozenset(each.id for each in self._fleet)
        for keep in self._keep_workers:
            keep(present)
