"""The places that this gateway holds: what it tells Redis when it joins, and its part of the workers' load."""

from collections.abc import Iterator

import msgspec

from gateway.queueing.shared.store import NOTHING, Load, Loads, SharedPlace, SharedTicket
from radix_cache.match import WorkerId


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A turn that was taken, and where."""

    worker: WorkerId
    uncached_tokens: int


class Places:
    """By id of the ticket."""

    def __init__(self) -> None:
        self._places: dict[str, SharedPlace] = {}
        self._own: dict[WorkerId, Load] = {}

    def __iter__(self) -> Iterator[SharedPlace]:
        return iter(self._places.values())

    def ids(self) -> set[str]:
        return set(self._places)

    def put(self, ticket: SharedTicket, placed: Placed) -> SharedPlace:
        """It has a place."""
        place = SharedPlace(ticket=ticket, worker=placed.worker, uncached_tokens=placed.uncached_tokens)
        self._places[ticket.id] = place
        self._count(place, 1)
        return place

    def first_token(self, ticket: SharedTicket) -> bool:
        """Its prefill is done. False if it has no place."""
        place = self._places.get(ticket.id)
        if place is None:
            return False
        self._count(place, -1)
        place = self._places[ticket.id] = msgspec.structs.replace(place, uncached_tokens=0)
        self._count(place, 1)
        return True

    def drop(self, ticket: SharedTicket) -> None:
        """It has ended. Dropping twice is dropping once."""
        place = self._places.pop(ticket.id, None)
        if place is not None:
            self._count(place, -1)

    def others(self, loads: Loads) -> Loads:
        """What is not this gateway's of loads that Redis tells."""
        return {worker: _less(total, self._own.get(worker, NOTHING)) for worker, total in loads.items()}

    def _count(self, place: SharedPlace, sign: int) -> None:
        own = self._own.get(place.worker, NOTHING)
        self._own[place.worker] = Load(
            own.tokens_queued + sign * place.uncached_tokens,
            own.streams + sign,
            own.kv_tokens + sign * place.ticket.kv_tokens,
        )


def _less(total: Load, own: Load) -> Load:
    # What is under way to Redis may make ours look more than all.
    return Load(
        max(0, total.tokens_queued - own.tokens_queued),
        max(0, total.streams - own.streams),
        max(0, total.kv_tokens - own.kv_tokens),
    )
