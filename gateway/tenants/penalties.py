"""Penalties: addresses that present keys that open nothing, and when each may do so again.

Each address has a bucket of failures (GCRA) that fills up within a minute. A key that opens something is let in
whatever its neighbours do: behind one address there may be many people. An IPv6 customer has a /64 at least, so
that counts as one address.
"""

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address

from gateway.settings_types import Address
from policies.gcra import Bucket

ADDRESSES_MAX = 10_000
MINUTE = 60.0
HOST_BITS = 64


class Penalties:
    """`clock`: seconds, never backwards. Beyond ADDRESSES_MAX the one that failed longest ago is forgotten."""

    def __init__(self, failures_per_minute_max: int, clock: Callable[[], float]) -> None:
        self._bucket = Bucket(amount=failures_per_minute_max, period_seconds=MINUTE)
        self._clock = clock
        self._full_at: OrderedDict[int | None, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def failed(self, address: Address | None) -> float:
        """One more failure from there. Seconds until the next one is borne; 0.0 if this one was."""
        now, at = self._clock(), place(address)
        full_at = self._full_at.get(at, 0.0)
        wait = self._bucket.wait(full_at, now, 1) or 0.0
        if wait == 0.0:
            self._full_at[at] = self._bucket.spend(full_at, now, 1)
            self._full_at.move_to_end(at)
            if len(self._full_at) > ADDRESSES_MAX:
                self._full_at.popitem(last=False)
        return wait


def place(address: Address | None) -> int | None:
    """What counts as one address. IPv4 and the networks of IPv6 do not meet: the latter are negative."""
    if isinstance(address, IPv6Address):
        return -1 - (int(address) >> HOST_BITS)
    return int(address) if address is not None else None
