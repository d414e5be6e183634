"""Dispatch follows the fleet: waiting requests get turns when a worker joins, is free again, or leaves."""

from gateway.dispatch.dispatch import Dispatch
from gateway.fleet.worker import Worker
from radix_cache.match import WorkerId


class DispatchFollowsFleet:
    """Gives turns when workers have room, and notifies other gateways of resting providers; see FleetListener."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def capacity_freed(self) -> None:
        """Give turns to waiting requests, if a worker has room for one."""
        if self._dispatch.acquisition.first_worker.waiting:
            self._dispatch.acquisition.first_worker.fleet_changed()
        self._dispatch.fleet_changed()

    def cache_lost(self, worker: WorkerId) -> None:
        """Do nothing: no request waits for a cache."""

    def reported(self, worker: Worker) -> None:
        """Send requests to a worker that is the first of its model."""
        if self._dispatch.acquisition.first_worker.waiting:
            self._dispatch.acquisition.first_worker.fleet_changed()

    def left(self, worker: WorkerId) -> None:
        """Do nothing: a worker that leaves makes room, too."""

    def provider_rests(self, worker: WorkerId, seconds: float) -> None:
        """Notify the other gateways."""
        self._dispatch.provider_backoff.notify(worker, seconds)
