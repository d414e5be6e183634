"""Workers that are closed to later requests, since one with an earlier turn waits for them."""

from collections.abc import Iterable

from radix_cache.match import WorkerId


class ClosedWorkers(set[WorkerId]):
    """The workers that requests with an earlier turn wait for, and that no later request may take.

    A tenant that has more requests waiting cannot use what lies between its narrow window and the wide one. So the
    workers that its requests wait for are closed to such tenants alone: they are in `to_crowding`, not in the set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.to_crowding: set[WorkerId] = set()

    def allows(self, worker: WorkerId, *, crowds: bool) -> bool:
        """Return whether a request may take this worker; `crowds`: its tenant has more requests waiting."""
        return worker not in self and not (crowds and worker in self.to_crowding)

    def close(self, workers: Iterable[WorkerId], *, crowds: bool) -> None:
        """Close workers that a request waits for."""
        (self.to_crowding if crowds else self).update(workers)
