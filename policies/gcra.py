"""GCRA, the generic cell rate algorithm (ITU-T I.371), with costs: smooth limits from one number each.

A limit of `amount` units per `period` lets a full bucket of `amount` through at once and refills it evenly. All
its state is the theoretical arrival time `tat`: the moment at which the bucket would be full again.

        spent                      left
    |<--------->|<------------------------------------->|
   now         tat                                  now + period

A cost of c units moves tat by c * period / amount, and fits if tat then stays within now + period. Settling moves
it by the difference; a refund that comes after the bucket has refilled changes nothing, as it should.

gateway/quotas/lua/reserve.lua repeats this arithmetic inside Redis; one suite holds both to the same results.
"""

from dataclasses import dataclass
from math import floor

TOLERANCE_SECONDS = 1e-6
"""Undoes float error: a bucket of 10 with 3 spent has 7 left and not 6, and a cost of all of it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """`amount` units per `period_seconds`. Times are seconds on one clock."""

    amount: float
    period_seconds: float

    @property
    def seconds_per_unit(self) -> float:
        return self.period_seconds / self.amount

    def wait(self, tat: float, now: float, cost: float) -> float | None:
        """Seconds until `cost` fits: 0.0 if it fits now, None if it is more than the bucket ever holds."""
        if cost > self.amount:
            return None
        excess = self.spend(tat, now, cost) - self.period_seconds - now
        return excess if excess > TOLERANCE_SECONDS else 0.0

    def spend(self, tat: float, now: float, cost: float) -> float:
        """`tat` after a cost; a negative cost gives back."""
        return max(tat, now) + cost * self.seconds_per_unit

    def remaining(self, tat: float, now: float) -> int:
        """Whole units left now; none when more was used than allowed."""
        left = now + self.period_seconds - max(tat, now) + TOLERANCE_SECONDS
        return max(0, floor(left / self.seconds_per_unit))

    def reset_seconds(self, tat: float, now: float) -> float:
        """Seconds until the bucket is full again."""
        return max(0.0, tat - now)
