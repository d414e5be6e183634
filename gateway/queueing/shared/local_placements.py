"""The placements that this gateway holds: reported when it joins, and its share of the loads of workers."""

from collections.abc import Iterator

import msgspec

from gateway.fleet.loads import Loads
from gateway.queueing.shared.queue_messages import SharedPlacement, SharedTicket
from policies.others_load import NO_TOTALS, LoadTotals
from radix_cache.match import WorkerId


class _Sums:
    """This gateway's share of one worker's load."""

    __slots__ = ("kv_tokens", "streams", "tokens_queued")

    def __init__(self) -> None:
        self.tokens_queued = self.streams = self.kv_tokens = 0


OwnLoads = dict[WorkerId, _Sums]
"""This gateway's share of the load of each worker."""


class LocalPlacements:
    """The placements of this gateway, by the id of their ticket."""

    def __init__(self, own: OwnLoads | None = None) -> None:
        """`own`: where the loads of these placements are added to those of others; None: nowhere."""
        self._placements: dict[str, SharedPlacement] = {}
        self._own: OwnLoads = {} if own is None else own

    def __iter__(self) -> Iterator[SharedPlacement]:
        return iter(self._placements.values())

    def ids(self) -> set[str]:
        """Return the ids of all tickets that hold a placement."""
        return set(self._placements)

    def put(self, ticket: SharedTicket, worker: WorkerId, uncached_tokens: int) -> SharedPlacement:
        """Add a placement."""
        placement = SharedPlacement(ticket=ticket, worker=worker, uncached_tokens=uncached_tokens)
        self._placements[ticket.id] = placement
        own = self._own.get(worker)
        if own is None:
            own = self._own[worker] = _Sums()
        own.tokens_queued += uncached_tokens
        own.streams += 1
        own.kv_tokens += ticket.kv_tokens
        return placement

    def note_first_token(self, ticket: SharedTicket) -> bool:
        """Take the prompt off the prefill queue, and return whether the ticket holds a placement."""
        placement = self._placements.get(ticket.id)
        if placement is None:
            return False
        if placement.uncached_tokens:
            self._own[placement.worker].tokens_queued -= placement.uncached_tokens
            self._placements[ticket.id] = msgspec.structs.replace(placement, uncached_tokens=0)
        return True

    def drop(self, ticket: SharedTicket) -> None:
        """Remove a placement that has ended. Removing it twice has no effect."""
        placement = self._placements.pop(ticket.id, None)
        if placement is not None:
            own = self._own[placement.worker]
            own.tokens_queued -= placement.uncached_tokens
            own.streams -= 1
            own.kv_tokens -= ticket.kv_tokens
            if not own.streams:
                del self._own[placement.worker]

    def others(self, loads: Loads) -> Loads:
        """Return the loads that Redis reports less this gateway's share: those of the other gateways."""
        return {worker: _less(total, self._own.get(worker)) for worker, total in loads.items()}


def _less(total: LoadTotals, own: _Sums | None) -> LoadTotals:
    if own is None:
        return total
    # Changes on their way to Redis may make this gateway's share look larger than the total.
    rest = LoadTotals(
        max(0, total.tokens_queued - own.tokens_queued),
        max(0, total.streams - own.streams),
        max(0, total.kv_tokens - own.kv_tokens),
    )
    return rest if rest != NO_TOTALS else NO_TOTALS
