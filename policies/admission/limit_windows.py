"""Windows of a limit: how much of the limit is used at a moment, and when more of it will be available.

    smooth    a bucket of `amount` that empties evenly within the window; a whole burst may come at once (GCRA)
    rolling   a window that begins with the first use after the previous one has ended
    calendar  a minute, hour, day, week (from Monday) or month of UTC

The smooth window is the generic cell rate algorithm of ITU-T I.371 with costs, in its form as a continuous-state
leaky bucket: the state is what is in the bucket and since when, so that a limit that is raised has that much more
left.

    used                                left
|<--------->|<------------------------------------->|
0                                                 amount

Settling replaces a reserved cost by the actual one in the window in which it was reserved. A cost reserved in a
fixed window that is over changes nothing any more. In a bucket costs drain in their order, and a cost that has
drained already cannot be refunded: the refund would be taken from the cost of other requests. The receipt of a
charge is the time at which the charge will have drained, as computed when it was written. Later refunds of earlier
charges let it drain sooner than its receipt; a refund in the time between is taken from the cost of other requests.
It is at most what those earlier refunds have freed, and all such refunds together are at most what was reserved and
not used (tests/property/test_late_refunds.py). Fixed windows are exact.

gateway/quotas/lua/windows.lua repeats this inside Redis, and decisions.lua beside it what is left and the wait
until a refused cost fits; one test suite holds both to the same results.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Literal, NamedTuple

Reset = Literal["smooth", "rolling", "calendar"]
"""How a window becomes free again; see the top of this file."""

Period = Literal["second", "minute", "hour", "day", "week", "month"]

PERIOD_SECONDS: dict[str, float] = {
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 7 * 86400.0,
    "month": 30 * 86400.0,
}
"""Length of each period; a month in a window that is not a calendar month has 30 days."""

TOLERANCE = 1e-6
"""Units by which comparisons are loosened to undo float error: a bucket of 10 with 3 used has 7 left and not 6, and
a cost of all of it fits."""


class WindowUsage(NamedTuple):
    """How much of a limit is used, at which time."""

    used: float = 0.0
    mark: float = 0.0
    """Of a smooth window, the time at which `used` was so; of other windows, their end, 0 if none is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window of a limit. Times are seconds on one clock, amounts and costs are units of the limit."""

    seconds: float
    """Its length."""
    reset: Reset = "smooth"
    period: str = ""
    """The period of a calendar window; empty for a window of another length."""

    @classmethod
    def of(cls, period: Period, reset: Reset = "smooth") -> "Window":
        """Return the window of one period."""
        return cls(seconds=PERIOD_SECONDS[period], reset=reset, period=period)

    @property
    def name(self) -> str:
        """A name for operators, equal for equal windows."""
        kind = "" if self.reset == "smooth" else f"{self.reset} "
        return kind + (self.period or f"{self.seconds:g}s")

    def current(self, usage: WindowUsage, amount: float, now: float, epoch: float) -> WindowUsage:
        """Return the usage as it is now, without what has drained or ended since; `epoch` is Unix time."""
        if self.reset == "smooth":
            emptied = max(0.0, now - usage.mark) * amount / self.seconds
            return WindowUsage(max(0.0, usage.used - emptied), max(usage.mark, now))
        if now < usage.mark:
            return usage
        if self.reset == "rolling":
            return WindowUsage()
        return WindowUsage(0.0, now + calendar_end(self.period, epoch) - epoch)

    def wait(self, usage: WindowUsage, amount: float, now: float, cost: float) -> float | None:
        """Return the seconds until `cost` fits: 0.0 if it fits now, None if it exceeds the whole window."""
        if cost > amount:
            return None
        excess = usage.used + cost - amount
        if excess <= TOLERANCE:
            return 0.0
        return excess * self.seconds / amount if self.reset == "smooth" else usage.mark - now

    def charge(self, usage: WindowUsage, now: float, cost: float) -> WindowUsage:
        """Return the usage after a charge of `cost`."""
        mark = now + self.seconds if self.reset == "rolling" and not usage.mark else usage.mark
        return WindowUsage(usage.used + cost, mark)

    def receipt(self, usage: WindowUsage, amount: float, now: float) -> float:
        """Return the receipt of a charge, which `settled` needs later; `usage` is the usage right after the charge.

        It is the time at which the charge will have drained (smooth), or the end of its window (others).
        """
        return self.reset_seconds(usage, amount, now) + now if self.reset == "smooth" else usage.mark

    def settled(
        self, usage: WindowUsage, amount: float, now: float, *, charged: float, actual: float, receipt: float
    ) -> WindowUsage:
        """Return the usage with the actual cost in place of the one that was charged."""
        change = actual - charged
        if self.reset != "smooth":
            return WindowUsage(max(0.0, usage.used + change), usage.mark) if usage.mark == receipt else usage
        if change < 0:
            left = min(max(0.0, (receipt - now) * amount / self.seconds), charged)
            change = -min(-change, left)
        return WindowUsage(max(0.0, usage.used + change), usage.mark)

    def remaining(self, usage: WindowUsage, amount: float) -> int:
        """Return the whole units that are left; 0 when more was used than allowed."""
        return max(0, floor(amount - usage.used + TOLERANCE))

    def reset_seconds(self, usage: WindowUsage, amount: float, now: float) -> float:
        """Return the seconds until the whole amount is available again."""
        if self.reset == "smooth":
            return usage.used * self.seconds / amount
        return max(0.0, usage.mark - now)


def calendar_end(period: str, epoch: float) -> float:
    """Return the Unix time at which the current minute, hour, day, week or month of UTC ends."""
    if period in ("second", "minute", "hour", "day"):
        seconds = PERIOD_SECONDS[period]
        return (epoch // seconds + 1) * seconds
    day = datetime.fromtimestamp(epoch, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        return (day + timedelta(days=7 - day.weekday())).timestamp()
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()
