"""What requests came lately, of which service classes and tenants: the dispatch window is set for them."""

from collections.abc import Iterable

SIGHT_SECONDS = 10.0
"""A class or a tenant is in sight for so long after a request of it came."""


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

    __slots__ = ("crowding", "others", "targets")

    def __init__(self) -> None:
        self.targets: dict[float, float] = {}
        """By TTFT target in seconds: when the last request came."""
        self.crowding = TenantPair()
        """Tenants that had a request waiting when the next one came."""
        self.others = TenantPair()
        """Tenants that had none waiting."""


class TrafficInSight:
    """The service classes and tenants in sight, by model. Times are seconds on any clock."""

    def __init__(self) -> None:
        self._seen: dict[str, SeenRequests] = {}

    def see(self, model: str, target_seconds: float, tenant: str, now: float, *, crowds: bool) -> bool:
        """Note that a request for this model came; return whether its class comes into sight.

        `target_seconds`: the TTFT target of its class. `crowds`: its tenant has requests waiting.
        """
        seen = self._seen.get(model)
        if seen is None:
            seen = self._seen[model] = SeenRequests()
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
