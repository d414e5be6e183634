"""The placements that this gateway holds: reported when it joins, and its share of the loads of workers.

They are in Redis by their tickets, except those in `sums` (placement_sums.py).
"""

from collections.abc import Iterator

import msgspec

from gateway.fleet.loads import Loads
from gateway.queueing.shared.placement_sums import LoadSums, PlacementSums
from gateway.queueing.shared.queue_messages import SharedPlacement, SharedTicket
from policies.others_load import NO_TOTALS, LoadTotals
from radix_cache.match import WorkerId

OwnLoads = dict[WorkerId, LoadSums]
"""This gateway's share of the load of each worker, by the placements that are in Redis by their tickets."""


class LocalPlacements:
    """The placements of this gateway, by the id of their ticket."""

    def __init__(self, own: OwnLoads | None = None) -> None:
        """`own`: where the loads of these placements are added to those of others; None: nowhere."""
        self._placements: dict[str, SharedPlacement] = {}
        self._own: OwnLoads = {} if own is None else own
        self.sums = PlacementSums()
        """The placements that are in Redis as sums."""

    def __iter__(self) -> Iterator[SharedPlacement]:
        return iter(self._placements.values())

    def ids(self) -> set[str]:
        """Return the ids of all tickets that hold a placement."""
        return set(self._placements)

    def put(self, ticket: SharedTicket, worker: WorkerId, uncached_tokens: int) -> SharedPlacement:
        """Add a placement."""
        placement = SharedPlacement(ticket=ticket, worker=worker, uncached_tokens=uncached_tokens)
        self._placements[ticket.id] = placement
        self._add(placement)
        return placement

    def put_in_sums(self, ticket: SharedTicket, worker: WorkerId, uncached_tokens: int) -> None:
        """Add a placement that is to be in Redis as a part of the sums."""
        placement = SharedPlacement(ticket=ticket, worker=worker, uncached_tokens=uncached_tokens)
        self._placements[ticket.id] = placement
        self.sums.add(placement)

    def forget_sums(self) -> None:
        """Keep no sums: Redis has none any more, or will have each placement by its ticket."""
        for id in self.sums.take_all():
            self._add(self._placements[id])

    def note_first_token(self, ticket: SharedTicket) -> bool:
        """Take the prompt off the prefill queue, and return whether the ticket holds a placement."""
        placement = self._placements.get(ticket.id)
        if placement is None:
            return False
        if placement.uncached_tokens:
            if ticket.id in self.sums:
                self.sums.note_first_token(placement)
            else:
                self._own[placement.worker].tokens_queued -= placement.uncached_tokens
            self._placements[ticket.id] = msgspec.structs.replace(placement, uncached_tokens=0)
        return True

    def drop(self, ticket: SharedTicket) -> None:
        """Remove a placement that has ended. Removing it twice has no effect."""
        placement = self._placements.pop(ticket.id, None)
        if placement is None:
            return
        if ticket.id in self.sums:
            self.sums.remove(placement)
            return
        own = self._own[placement.worker]
        own.add(placement, -1)
        if not own.streams:
            del self._own[placement.worker]

    def others(self, loads: Loads) -> Loads:
        """Return the loads that Redis reports less this gateway's share: those of the other gateways."""
        reported = self.sums.reported
        return {
            worker: _less(_less(total, self._own.get(worker)), reported.get(worker))
            for worker, total in loads.items()
        }

    def _add(self, placement: SharedPlacement) -> None:
        own = self._own.get(placement.worker)
        if own is None:
            own = self._own[placement.worker] = LoadSums()
        own.add(placement)


def _less(total: LoadTotals, own: LoadSums | LoadTotals | None) -> LoadTotals:
    if own is None:
        return total
    # Changes on their way to Redis may make this gateway's share look larger than the total.
    rest = LoadTotals(
        max(0, total.tokens_queued - own.tokens_queued),
        max(0, total.streams - own.streams),
        max(0, total.kv_tokens - own.kv_tokens),
    )
    return rest if rest != NO_TOTALS else NO_TOTALS
