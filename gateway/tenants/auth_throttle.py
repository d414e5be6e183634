"""AuthThrottle: addresses that present keys that open nothing, and when each may do so again.

Each address has a bucket of failures (GCRA) that fills up within a minute. A key that opens something is let in
whatever its neighbours do: behind one address there may be many people. An IPv6 customer has a /64 at least, so
that counts as one address.
"""

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address

from gateway.settings.types import Address
from policies.admission.limit_windows import WindowUsage, Window

ADDRESSES_MAX = 10_000
MINUTE = Window.of("minute")
HOST_BITS = 64


class AuthThrottle:
    """`clock`: seconds, never backwards. Beyond ADDRESSES_MAX the one that failed longest ago is forgotten."""

    def __init__(self, failures_per_minute_max: int, clock: Callable[[], float]) -> None:
        self._failures_max = failures_per_minute_max
        self._clock = clock
        self._failures: OrderedDict[int | None, WindowUsage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: Address | None) -> float:
        """One more failure from there. Seconds until the next one is borne; 0.0 if this one was."""
        now, at = self._clock(), place(address)
        failures = MINUTE.current(self._failures.get(at, WindowUsage()), self._failures_max, now, now)
        wait = MINUTE.wait(failures, self._failures_max, now, 1) or 0.0
        if wait == 0.0:
            self._failures[at] = MINUTE.charge(failures, now, 1)
            self._failures.move_to_end(at)
            if len(self._failures) > ADDRESSES_MAX:
                self._failures.popitem(last=False)
        return wait


def place(address: Address | None) -> int | None:
    """What counts as one address. IPv4 and the networks of IPv6 do not meet: the latter are negative."""
    if isinstance(address, IPv6Address):
        return -1 - (int(address) >> HOST_BITS)
    return int(address) if address is not None else None
