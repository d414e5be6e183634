"""What each tenant has received of late against its share, and how even that is.

Work is counted when a turn is given, corrected when it is settled, and fades: half of it counts after HALF_SECONDS.
Shares are owed to those who wait; who asks for less than its share has what it asked for, and is not compared.
"""

from collections.abc import Iterable
from typing import NamedTuple

HALF_SECONDS = 30.0
WAITED_SECONDS = 60.0
TENANTS_MAX = 1024


class Received(NamedTuple):
    """One tenant. `units`: cost units of late, `share`: of all that was given; `due`: its weight among those who
    have waited in the last minute, 0 for who has not."""

    tenant: str
    weight: float
    units: float
    share: float
    due: float


class Account:
    """What one queue has given to whom."""

    def __init__(self) -> None:
        self._units: dict[str, tuple[float, float, float]] = {}  # units at a moment, and weight
        self._waited: dict[str, float] = {}

    def gave(self, tenant: str, weight: float, units: float, now: float) -> None:
        """So much more work; less, if it is settled to less."""
        before, at, _ = self._units.pop(tenant, (0.0, now, weight))
        self._units[tenant] = (max(0.0, before * _faded(now - at) + units), now, weight)
        self._bound()

    def waits(self, tenant: str, now: float) -> None:
        """It has something waiting."""
        self._waited.pop(tenant, None)
        self._waited[tenant] = now

    def received(self, now: float) -> list[Received]:
        """Most first."""
        units = {tenant: units * _faded(now - at) for tenant, (units, at, _) in self._units.items()}
        waited = {t for t, at in self._waited.items() if now - at <= WAITED_SECONDS and t in units}
        given, due = sum(units.values()), sum(self._units[tenant][2] for tenant in waited)
        found = [
            Received(
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
        """Jain's index of what those who waited have received over their weights."""
        return jain(one.units / one.weight for one in self.received(now) if one.due)

    def _bound(self) -> None:
        for kept in (self._units, self._waited):
            while len(kept) > TENANTS_MAX:
                del kept[next(iter(kept))]


def jain(values: Iterable[float]) -> float:
    """1 where all are equal, 1/n where one of n has everything; 1 of nothing (Jain, Chiu, Hawe 1984)."""
    found = list(values)
    squares = sum(value * value for value in found)
    return sum(found) ** 2 / (len(found) * squares) if squares else 1.0


def _faded(seconds: float) -> float:
    return float(0.5 ** (max(0.0, seconds) / HALF_SECONDS))
