"""The work that came in the last seconds, by tenant: how much of it is of tenants that crowd out others.

    |-- the part before --|-- the part under way --> now       each lasts PART_SECONDS

A tenant's work is what came of it or, if that is more, what had its turn after a wait: of a burst nothing comes
while it waits. What came counts for two parts after the last of it: turns of long prompts may be further apart than
a part lasts.

traffic_in_sight.py decides which tenants crowd. The gain of the other tenants, if a tenant is held back, is its
share of all work: a tenant with a quarter of it that waits near saturation delays others little, a flood delays
them much. A flood is of few tenants. Where most of the work is that of many tenants, the fleet is near saturation:
to hold back most of the work makes that worse, and all tenants wait.
"""

from heapq import nlargest

from policies.admission.tenant_demand import TenantDemand

PART_SECONDS = 2.0
"""How long a part lasts: what came before the last two is dropped. A burst is shorter."""

TENANTS_MAX = 1024
"""Tenants that are counted by name in a part; a tenant with much of the work is among the first."""


CROWDING_SHARE = 0.5
"""Tenants that crowd hold others up if they have more than this share of the work of the last seconds together."""

CROWDED_SECONDS = 10.0
"""For so long a tenant that has crowded does not count as one of the others, while its demand is high."""

CROWDING_MAX = 2
"""Tenants that crowd and are counted: those with the most work."""


class WorkPart:
    """The work of one part of the time, in uncached prompt tokens."""

    __slots__ = ("came", "had_turns", "squares", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        """The work of all tenants."""
        self.came: dict[str, int] = {}
        self.squares: dict[str, int] = {}
        """Of each tenant, the sum of the squares of the tokens of the prompts that came."""
        self.had_turns: dict[str, int] = {}

    def of_tenant(self, tenant: str) -> int:
        """Return the work of a tenant."""
        came, had_turns = self.came.get(tenant, 0), self.had_turns.get(tenant, 0)
        return came if came > had_turns else had_turns

    def comes(self, tenant: str, tokens: int) -> bool:
        """Count a request that came; return whether its tenant is counted by name."""
        came, before = self.came, self.came.get(tenant)
        if before is None:
            if len(came) >= TENANTS_MAX:
                self.tokens += tokens
                return False
            before = 0
        came[tenant] = before + tokens
        self.squares[tenant] = self.squares.get(tenant, 0) + tokens * tokens
        had_turns = self.had_turns.get(tenant, 0) if self.had_turns else 0
        self.tokens += max(0, before + tokens - max(before, had_turns))
        return True

    def has_turn(self, tenant: str, tokens: int) -> bool:
        """Count a request that has its turn after a wait; return whether its tenant is counted by name."""
        turns, before = self.had_turns, self.had_turns.get(tenant)
        if before is None:
            if len(turns) >= TENANTS_MAX:
                return False
            before = 0
        turns[tenant] = before + tokens
        self.tokens += max(0, before + tokens - max(before, self.came.get(tenant, 0)))
        return True


class RecentWork:
    """The work of the last seconds. Times are seconds on any clock; `now`: when the first work comes."""

    __slots__ = ("_before", "_began_at", "_crowded_at", "_demand", "_last_at", "_now", "crowding")

    def __init__(self, now: float) -> None:
        self._before, self._now = WorkPart(), WorkPart()
        self._began_at = self._last_at = now
        self._demand = TenantDemand(now)
        self._crowded_at: dict[str, float] = {}
        """When each tenant last crowded others out with much of the work."""
        self.crowding: set[str] = set()
        """Tenants that crowded others out with their last request, or the last one that had its turn."""

    def add(self, tenant: str, tokens: int, now: float, *, crowds: bool) -> None:
        """Count a request of a tenant; `crowds`: the tenant crowds others out."""
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        self._last_at = now
        if self._now.comes(tenant, tokens):
            if crowds:
                self._crowd(tenant, now)
            elif self.crowding:
                self.crowding.discard(tenant)

    def add_turn(self, tenant: str, tokens: int, now: float) -> None:
        """Count a request of a tenant that has its turn after a wait, while more of it wait."""
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        self._last_at = now
        if self._now.has_turn(tenant, tokens):
            self._crowd(tenant, now)

    def _crowd(self, tenant: str, now: float) -> None:
        self.crowding.add(tenant)
        own, in_all = self.of_tenant(tenant, now)
        if own > CROWDING_SHARE / CROWDING_MAX * in_all:
            self._crowded_at[tenant] = now

    def of_tenant(self, tenant: str, now: float) -> tuple[int, int]:
        """Return the work of this tenant, and that of all."""
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        before, since = self._before, self._now
        return before.of_tenant(tenant) + since.of_tenant(tenant), before.tokens + since.tokens

    def tokens(self, now: float) -> tuple[int, int]:
        """Return the work of tenants that crowd, and that of all.

        Of tenants that crowd, CROWDING_MAX are counted.
        """
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        parts = (self._before, self._now)
        of_each = (sum(part.of_tenant(tenant) for part in parts) for tenant in self.crowding)
        return sum(nlargest(CROWDING_MAX, of_each)), self._before.tokens + self._now.tokens

    def demand_of_others(self, much: float, now: float) -> tuple[float, float]:
        """Return the tokens and squares that come in a second of tenants that do not crowd: see TenantDemand.

        A tenant that has crowded with much of the work is none of them for CROWDED_SECONDS, and neither are the
        CROWDING_MAX with the most work of those that crowd, if more than `much` tokens of it come in a second: a
        tenant with less demand waits as the others do. Neither is a tenant that begins with most of the work of a
        part: a flood of which no request waits yet, at this gateway.
        """
        if now - self._began_at > PART_SECONDS:
            self._begin_part(now)
        seconds = self._seconds(now)
        crowd = {tenant for tenant, at in self._crowded_at.items() if now - at <= CROWDED_SECONDS}
        crowd.update(nlargest(CROWDING_MAX, self.crowding, key=lambda tenant: self.of_tenant(tenant, now)[0]))
        return self._demand.without(
            tenant
            for tenant in crowd
            if self.of_tenant(tenant, now)[0] > much * seconds
            or self._demand.tokens_per_second(tenant) > much
        )

    def share_with(self, tenant: str, tokens: int, now: float, *, tokens_per_second: float) -> float:
        """Return a tenant's share of the work, with a request of so many tokens.

        Of more work than the workers compute, `tokens_per_second`, only as much counts: a flood of many times that
        would make the work of all others seem little.
        """
        own, in_all = self.of_tenant(tenant, now)
        computed = tokens_per_second * max(PART_SECONDS, self._seconds(now))
        return (own + tokens) / min(in_all + tokens, max(own + tokens, computed))

    def _seconds(self, now: float) -> float:
        """Return how long the parts have lasted."""
        return now - self._began_at + (PART_SECONDS if self._before.tokens else 0.0)

    def _begin_part(self, now: float) -> None:
        came = self._now.came
        most = max(came, key=came.__getitem__, default="")
        if came and came[most] > CROWDING_SHARE * self._now.tokens and not self._demand.knows(most):
            self._crowded_at[most] = now
        self._demand.count(self._now.came, self._now.squares, now)
        self._crowded_at = {
            tenant: at for tenant, at in self._crowded_at.items() if now - at <= CROWDED_SECONDS
        }
        self._before = self._now if now - self._last_at <= 2 * PART_SECONDS else WorkPart()
        self._now, self._began_at = WorkPart(), now
        self.crowding &= self._before.came.keys() | self._before.had_turns.keys()
