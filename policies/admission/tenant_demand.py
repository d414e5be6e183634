"""The demand of each tenant: its prompt tokens in a second, where earlier ones count less and less."""

from collections.abc import Iterable, Mapping
from math import exp, inf

DEMAND_SECONDS = 10.0
"""The time in which earlier work counts less and less."""

WEIGHT_MIN = 0.2
"""The part of the time that demand is counted over after which it is known."""

FORGOTTEN = 0.01
"""A tenant is dropped once its earlier demand counts less than this share of itself."""


class TenantDemand:
    """The uncached prompt tokens of each tenant, and the sum of each prompt's squares. `now`: counting begins."""

    def __init__(self, now: float) -> None:
        self._counted_at = now
        self._weight = 0.0
        self._of: dict[str, tuple[float, float, float]] = {}
        self._total = 0.0, 0.0

    def count(self, tokens: Mapping[str, int], squares: Mapping[str, int], now: float) -> None:
        """Count what came since the last call, by tenant."""
        left = exp((self._counted_at - now) / DEMAND_SECONDS)
        self._weight, self._counted_at = left * self._weight + 1 - left, now
        faded = {
            tenant: (left * of[0], left * of[1], left * of[2])
            for tenant, of in self._of.items()
            if of[2] > FORGOTTEN
        }
        for tenant, came in tokens.items():
            before = faded.get(tenant, (0.0, 0.0, 0.0))
            faded[tenant] = before[0] + came, before[1] + squares[tenant], 1.0
        self._of = faded
        self._total = sum(of[0] for of in faded.values()), sum(of[1] for of in faded.values())

    def knows(self, tenant: str) -> bool:
        """Return whether a tenant has any demand that still counts."""
        return tenant in self._of

    def tokens_per_second(self, tenant: str) -> float:
        """Return the tokens of a tenant that come in a second; 0 while that is not known."""
        found = self._of.get(tenant)
        return found[0] / DEMAND_SECONDS / self._weight if found is not None else 0.0

    def without(self, tenants: Iterable[str]) -> tuple[float, float]:
        """Return the tokens and the squares that come in a second of all but these tenants; infinity if not known.

        By the squares follows how long requests wait for each other: a long prompt keeps many waiting.
        """
        if self._weight <= WEIGHT_MIN:
            return inf, inf
        of = [self._of[tenant] for tenant in tenants if tenant in self._of]
        seconds = DEMAND_SECONDS * self._weight
        tokens = self._total[0] - sum(each[0] for each in of)
        squares = self._total[1] - sum(each[1] for each in of)
        return max(0.0, tokens) / seconds, max(0.0, squares) / seconds
