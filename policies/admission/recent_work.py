"""The work that came in the last seconds, by tenant: how much of it is of tenants that crowd out others.

    |-- the part before --|-- the part under way --> now       each lasts PART_SECONDS

Which tenants crowd says traffic_in_sight.py. What others would gain, if it were held back, is
its share of all work: a tenant with a quarter of it that waits near saturation delays others little, a flood delays
them much. A flood is of few tenants. Where it takes many to make up most of the work, the fleet is near saturation:
to hold back most of what it has to do makes that worse, and everyone waits.
"""

from heapq import nlargest

PART_SECONDS = 2.0
"""How long a part lasts: what came before the last two is forgotten. A burst is shorter."""

TENANTS_MAX = 1024
"""Tenants that are told apart in a part; a tenant with much of the work is among the first."""


CROWDING_MAX = 2
"""Tenants that crowd and are counted: those with the most work."""


class WorkPart:
    """The work that came in one part of the time, in uncached prompt tokens."""

    __slots__ = ("of_tenants", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.of_tenants: dict[str, int] = {}


class RecentWork:
    """The work that came in the last seconds. Times are seconds on any clock."""

    __slots__ = ("_before", "_began_at", "_now", "crowding")

    def __init__(self) -> None:
        self._before, self._now = WorkPart(), WorkPart()
        self._began_at = float("-inf")
        self.crowding: set[str] = set()
        """Tenants that crowded others out with their last request."""

    def add(self, tenant: str, tokens: int, now: float, *, crowds: bool) -> None:
        """Count a request of a tenant; `crowds`: the tenant crowds others out."""
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        part = self._now
        part.tokens += tokens
        of_tenants = part.of_tenants
        if tenant in of_tenants or len(of_tenants) < TENANTS_MAX:
            of_tenants[tenant] = of_tenants.get(tenant, 0) + tokens
            if crowds:
                self.crowding.add(tenant)
            elif self.crowding:
                self.crowding.discard(tenant)

    def of_tenant(self, tenant: str, now: float) -> tuple[int, int]:
        """Return the uncached prompt tokens that came of this tenant, and those that came in all."""
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        before, since = self._before, self._now
        own = before.of_tenants.get(tenant, 0) + since.of_tenants.get(tenant, 0)
        return own, before.tokens + since.tokens

    def tokens(self, now: float) -> tuple[int, int]:
        """Return the uncached prompt tokens that came of tenants that crowd, and those that came in all.

        Of tenants that crowd, CROWDING_MAX are counted.
        """
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        parts = (self._before, self._now)
        of_each = (sum(part.of_tenants.get(tenant, 0) for part in parts) for tenant in self.crowding)
        return sum(nlargest(CROWDING_MAX, of_each)), self._before.tokens + self._now.tokens

    def _begin_part(self, now: float) -> None:
        self._before = self._now if now - self._began_at <= 2 * PART_SECONDS else WorkPart()
        self._now, self._began_at = WorkPart(), now
        self.crowding &= self._before.of_tenants.keys()
