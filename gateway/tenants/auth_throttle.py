"""Refuses addresses for a while that have presented many wrong credentials.

Each address has a bucket of failures (GCRA) that refills within a minute. A valid key is accepted even from a
refused address, since many clients may share one. A secret that people choose is then not even compared, see
gateway/adminapi/authorization.py. An IPv6 customer has a /64 at least, so a /64 counts as one address.
"""

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address

from gateway.settings.types import Address
from policies.admission.limit_windows import Window, WindowUsage

ADDRESSES_MAX = 10_000
MINUTE = Window.of("minute")
HOST_BITS = 64


class AuthThrottle:
    """Counts failed authentications by address; `clock` is monotonic, in seconds.

    Beyond ADDRESSES_MAX addresses, the address with the oldest failure is dropped.
    """

    def __init__(self, failures_per_minute_max: int, clock: Callable[[], float]) -> None:
        self._failures_max = failures_per_minute_max
        self._clock = clock
        self._failures: OrderedDict[int | None, WindowUsage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def seconds_to_wait(self, address: Address | None) -> float:
        """Return the seconds for which this address is refused; 0.0 if it is not."""
        known = self._failures.get(address_group(address))
        if known is None:
            return 0.0
        now = self._clock()
        failures = MINUTE.current(known, self._failures_max, now, now)
        return MINUTE.wait(failures, self._failures_max, now, 1) or 0.0

    def record_failure(self, address: Address | None) -> float:
        """Count a failure of this address, and return the seconds for which it is refused.

        Returns 0.0 if this failure was within bounds.
        """
        now, at = self._clock(), address_group(address)
        failures = MINUTE.current(self._failures.get(at, WindowUsage()), self._failures_max, now, now)
        wait = MINUTE.wait(failures, self._failures_max, now, 1) or 0.0
        if wait == 0.0:
            self._failures[at] = MINUTE.charge(failures, now, 1)
            self._failures.move_to_end(at)
            if len(self._failures) > ADDRESSES_MAX:
                self._failures.popitem(last=False)
        return wait


def address_group(address: Address | None) -> int | None:
    """Return the number of the group of addresses that are throttled together.

    Groups of IPv6 are negative, so that they never coincide with groups of IPv4.
    """
    if isinstance(address, IPv6Address):
        return -1 - (int(address) >> HOST_BITS)
    return int(address) if address is not None else None
