"""The fairness account of a queue: the work that each tenant received lately against its share, and how even it is.

Work is counted when a turn is given, corrected when the request ends, and fades: half of it counts after
HALF_SECONDS. Shares are owed to tenants that wait; a tenant with less demand than its share has received all that
it sent, and is not compared.
"""

from collections.abc import Iterable
from typing import NamedTuple

HALF_SECONDS = 30.0
"""Time after which work counts half."""

WAITED_SECONDS = 60.0
"""A tenant that waited within this time is owed its share."""

TENANTS_MAX = 1024
"""The most tenants in an account; those without work for longest are dropped first."""


class TenantShare(NamedTuple):
    """What one tenant received lately."""

    tenant: str
    weight: float
    units: float
    """Cost units that it received, faded."""
    share: float
    """Its part of all cost units that were given."""
    due: float
    """Its part by weight among the tenants that waited within WAITED_SECONDS; 0 if it did not wait."""


class FairnessAccount:
    """The work that one queue has given to each tenant lately."""

    def __init__(self) -> None:
        self._units: dict[str, tuple[float, float, float]] = {}  # units at a moment, and weight
        self._waited: dict[str, float] = {}

    def record(self, tenant: str, weight: float, units: float, now: float) -> None:
        """Add work that a tenant received, in cost units; negative if a request used less."""
        found = self._units.pop(tenant, None)
        if found is not None:
            before, at, _ = found
            # As _faded has it; written out, since every request passes here twice.
            units += before * 0.5 ** ((now - at) / HALF_SECONDS) if now > at else before
        self._units[tenant] = (units if units > 0.0 else 0.0, now, weight)
        if len(self._units) > TENANTS_MAX:
            del self._units[next(iter(self._units))]

    def record_waiting(self, tenant: str, now: float) -> None:
        """Note that a tenant has a request waiting."""
        self._waited.pop(tenant, None)
        self._waited[tenant] = now
        if len(self._waited) > TENANTS_MAX:
            del self._waited[next(iter(self._waited))]

    def tenant_shares(self, now: float) -> list[TenantShare]:
        """Return what each tenant received lately, the most first."""
        units = {tenant: units * _faded(now - at) for tenant, (units, at, _) in self._units.items()}
        waited = {t for t, at in self._waited.items() if now - at <= WAITED_SECONDS and t in units}
        given, due = sum(units.values()), sum(self._units[tenant][2] for tenant in waited)
        found = [
            TenantShare(
                tenant,
                weight,
                units[tenant],
                units[tenant] / given if given else 0.0,
                weight / due if tenant in waited else 0.0,
            )
            for tenant, (_, _, weight) in self._units.items()
        ]
        return sorted(found, key=lambda one: (-one.units, one.tenant))

    def evenness(self, now: float) -> float:
        """Return Jain's index of work over weight, over the tenants that waited."""
        return jain(one.units / one.weight for one in self.tenant_shares(now) if one.due)


def jain(values: Iterable[float]) -> float:
    """Return Jain's fairness index, sum(x)^2 / (n sum(x^2)) (Jain, Chiu, Hawe 1984).

    It is 1 where all values are equal, 1/n where one of n has everything, and 1 without any value above 0.
    """
    found = list(values)
    squares = sum(value * value for value in found)
    return sum(found) ** 2 / (len(found) * squares) if squares else 1.0


def _faded(seconds: float) -> float:
    return float(0.5 ** (max(0.0, seconds) / HALF_SECONDS))
