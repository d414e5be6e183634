"""What requests came lately, of which service classes and tenants: the dispatch window is set for them."""

from collections.abc import Iterable

from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals

SIGHT_SECONDS = 10.0
"""A class or a tenant is in sight for so long after a request of it came."""

STANDING_SECONDS = 2.0
"""A tenant that has had most of all waiting requests for so long is a flood, and no burst."""


class TenantPair:
    """The two tenants whose requests came last."""

    __slots__ = ("last", "last_at", "other", "other_at")

    def __init__(self) -> None:
        self.last: str | None = None
        self.other: str | None = None
        self.last_at = self.other_at = 0.0

    def in_sight(self, now: float) -> set[str]:
        """Return the tenants that are in sight."""
        last = ((self.last, self.last_at), (self.other, self.other_at))
        return {tenant for tenant, at in last if tenant is not None and now - at <= SIGHT_SECONDS}


class SeenRequests:
    """What was seen of the requests for one model."""

    __slots__ = ("crowding", "flood", "flood_at", "flood_since", "others", "targets")

    def __init__(self) -> None:
        self.targets: dict[float, float] = {}
        """By TTFT target in seconds: when the last request came."""
        self.crowding = TenantPair()
        """Tenants that had a request waiting when the next one came."""
        self.others = TenantPair()
        """Tenants that had none waiting."""
        self.flood = NONE_WAITING
        """What waited of a tenant that had most of all waiting requests, when its last request came."""
        self.flood_since = self.flood_at = -SIGHT_SECONDS
        """When the first and the last request of such a tenant came, without a break."""


class TrafficInSight:
    """The service classes and tenants in sight, by model. Times are seconds on any clock."""

    def __init__(self) -> None:
        self._seen: dict[str, SeenRequests] = {}

    def see(
        self,
        model: str,
        target_seconds: float,
        tenant: str,
        now: float,
        *,
        crowds: bool,
        flood: WaitingTotals = NONE_WAITING,
    ) -> bool:
        """Note that a request for this model came; return whether its class comes into sight.

        `target_seconds`: the TTFT target of its class. `crowds`: its tenant has requests waiting.
        `flood`: what waits of its tenant, if that is most of all that waits.
        """
        seen = self._seen.get(model)
        if seen is None:
            seen = self._seen[model] = SeenRequests()
        if flood.requests:
            if now - seen.flood_at > STANDING_SECONDS:
                seen.flood_since = now
            seen.flood, seen.flood_at = flood, now
        tenants = seen.crowding if crowds else seen.others
        if tenant != tenants.last:
            tenants.other, tenants.other_at = tenants.last, tenants.last_at
            tenants.last = tenant
        tenants.last_at = now
        last = seen.targets.get(target_seconds)
        seen.targets[target_seconds] = now
        return last is None or now - last > SIGHT_SECONDS

    def targets(self, models: Iterable[str], now: float) -> set[float]:
        """Return the TTFT targets in sight of these models; drop what is out of sight."""
        found: set[float] = set()
        for model in models:
            seen = self._seen.get(model)
            if seen is None:
                continue
            seen.targets = {target: at for target, at in seen.targets.items() if now - at <= SIGHT_SECONDS}
            if not seen.targets:
                del self._seen[model]
            found.update(seen.targets)
        return found

    def contended(self, models: Iterable[str], now: float) -> bool:
        """Return whether one tenant has requests waiting for these models while another one has none."""
        seen = [found for model in models if (found := self._seen.get(model)) is not None]
        crowding = set[str]().union(*(of.crowding.in_sight(now) for of in seen))
        others = set[str]().union(*(of.others.in_sight(now) for of in seen))
        return bool(crowding) and bool(others) and len(crowding | others) > 1

    def standing_flood(self, models: Iterable[str], now: float) -> WaitingTotals:
        """Return what waits for these models in floods that have lasted for STANDING_SECONDS."""
        total = NONE_WAITING
        for model in models:
            seen = self._seen.get(model)
            if seen is None or now - seen.flood_at > STANDING_SECONDS:
                continue
            if seen.flood_at - seen.flood_since > STANDING_SECONDS:
                total = total.plus(seen.flood.requests, seen.flood.tokens)
        return total
