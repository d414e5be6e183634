"""The Redis keys and the packed limits of a reservation's scopes, made once for the same scopes.

Keys of one organisation share a hash tag, so that all its scopes are decided in one place:

    rg:{acme}:lease:<reservation id>       what was charged, until it is settled; then that it has ended
    rg:{acme}:lease:<record>               the same for leases that one call has reserved ahead of requests
    rg:{acme}:once:<name>                  the same, for a request that its client may repeat
    rg:{acme}:used:<scope>                 hash: limit name -> usage, and the time of it or the end of its window
    rg:{acme}:running:<scope>[:<limit>]    sorted set: reservation id -> millisecond at which its lease ends
    rg:{acme}:whole                        hash: key of usage -> millisecond since which that is complete
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import msgspec

from gateway.quotas.counter_recovery import is_long
from gateway.quotas.limit import CONCURRENCY, Limit, Scope
from gateway.quotas.quota_store import UNIT_INDEX, Cost, Reservation

LAYOUTS_MAX = 4096

_UNITS = Struct("<6d")


@lru_cache(maxsize=4096)
def packed_cost(cost: Cost) -> bytes:
    """Return a cost by unit, as the functions in Redis unpack it."""
    return _UNITS.pack(*cost.units)


class ScopeLayout:
    """The keys and limits of some scopes, as the functions in Redis take them."""

    __slots__ = (
        "concurrency_keys",
        "keys",
        "lease",
        "limits",
        "once",
        "packed",
        "restored_key",
        "scopes",
        "tag",
    )

    def __init__(self, prefix: str, organisation: str, scopes: tuple[Scope, ...]) -> None:
        self.scopes = scopes
        self.tag = f"{prefix}:{{{organisation}}}"
        self.lease, self.once = f"{self.tag}:lease:", f"{self.tag}:once:"
        """The beginnings of leases' keys."""
        self.keys: list[str] = []
        """All keys except the lease's, which comes first: these are numbered from 2."""
        self.limits: list[tuple[Scope, Limit]] = []
        """All limits in their order, each with its scope."""
        self.concurrency_keys: list[str] = []
        self.restored_key = 0
        """The number of the key of what was put back; 0 where there is no long window."""
        numbers = [number for scope in scopes for number in self._add(scope)]
        self.packed = packed_limits([limit for _, limit in self.limits], numbers)
        """The limits, each with the number of its key."""
        if any(is_long(limit) for _, limit in self.limits):
            self.keys.append(f"{self.tag}:whole")
            self.restored_key = len(self.keys) + 1

    def lease_key(self, reservation: Reservation) -> str:
        """Return the key of a reservation's lease."""
        once = reservation.idempotency_key
        if once is not None:
            return f"{self.once}{once.name}"
        return f"{self.lease}{reservation.record or reservation.id}"

    def _add(self, scope: Scope) -> list[int]:
        """Add a scope's limits and keys, and return the number of each limit's key."""
        numbers, used = [], 0
        for limit in scope.limits:
            self.limits.append((scope, limit))
            if limit.unit == CONCURRENCY:
                name = "" if limit.name == CONCURRENCY else f":{limit.name}"
                self.concurrency_keys.append(f"{self.tag}:running:{scope.name}{name}")
                self.keys.append(self.concurrency_keys[-1])
                numbers.append(len(self.keys) + 1)
                continue
            if not used:
                self.keys.append(f"{self.tag}:used:{scope.name}")
                used = len(self.keys) + 1
            numbers.append(used)
        return numbers


class ScopeLayouts:
    """The layouts of scopes that were used lately."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._layouts: dict[tuple[str, int], ScopeLayout] = {}

    def of(self, reservation: Reservation) -> ScopeLayout:
        """Return the layout of the reservation's scopes; the same tuple of scopes has the same layout."""
        scopes = reservation.scopes
        key = (reservation.organisation, id(scopes))
        layout = self._layouts.get(key)
        # A layout keeps its scopes alive, so no others have their id.
        if layout is None or layout.scopes is not scopes:
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            layout = self._layouts[key] = ScopeLayout(self._prefix, reservation.organisation, scopes)
        return layout


def packed_limits(limits: Sequence[Limit], key_numbers: Sequence[int]) -> bytes:
    """Return limits and the numbers of their keys, as the functions in Redis unpack them."""
    fields = [(number, *_fields(limit)) for number, limit in zip(key_numbers, limits, strict=True)]
    return msgspec.msgpack.encode(fields)


def _fields(limit: Limit) -> tuple[object, ...]:
    window = limit.window
    return (
        UNIT_INDEX[limit.unit] + 1 if limit.unit != CONCURRENCY else 0,
        window.reset,
        window.period,
        int(window.seconds * 1e6),
        limit.amount,
        limit.mode,
        limit.amount * limit.alert_at if limit.alert_at is not None else 0,
        limit.name,
    )
