"""Windows: how much of a limit is used at a moment, in smooth and in fixed windows, and when there is more of it.

    smooth    a bucket of `amount` that empties evenly within the window, whole bursts at once (GCRA)
    rolling   a window that begins with the first use after the last one has ended
    calendar  a minute, hour, day, week (from Monday) or month of UTC

The smooth one is the generic cell rate algorithm of ITU-T I.371 with costs, in its form as a continuous-state leaky
bucket: the state is what is in the bucket and since when, so that a limit that is raised has that much more left.

    used                                left
|<--------->|<------------------------------------->|
0                                                 amount

Settling replaces a reserved cost by the actual one in the window in which it was reserved. What is reserved in a
fixed window that is over changes nothing any more. In a bucket costs run out in their order, and what has run out
already cannot be given back: it would be taken from the cost of others. A receipt says when that will be, as far as
was known when it was written: where those before it are given back meanwhile it is sooner, and a refund between
then and the receipt is taken from the cost of others after all: never more than was reserved and not used.

gateway/quotas/lua/windows.lua repeats this inside Redis; one suite holds both to the same results.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor
from typing import Literal, NamedTuple

Reset = Literal["smooth", "rolling", "calendar"]
Period = Literal["second", "minute", "hour", "day", "week", "month"]

PERIOD_SECONDS: dict[str, float] = {
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 7 * 86400.0,
    "month": 30 * 86400.0,
}
"""A month that is of no calendar has 30 days."""

TOLERANCE = 1e-6
"""Units. Undoes float error: a bucket of 10 with 3 used has 7 left and not 6, and a cost of all of it fits."""


class Meter(NamedTuple):
    """What is used. `mark`: of a smooth window, when that was so; of others, when they end, 0 if none is open."""

    used: float = 0.0
    mark: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`seconds`: its length; of a calendar's, `period` says which one it is. Times are seconds on one clock."""

    seconds: float
    reset: Reset = "smooth"
    period: str = ""

    @classmethod
    def of(cls, period: Period, reset: Reset = "smooth") -> "Window":
        return cls(seconds=PERIOD_SECONDS[period], reset=reset, period=period)

    @property
    def name(self) -> str:
        """Equal names, equal windows."""
        kind = "" if self.reset == "smooth" else f"{self.reset} "
        return kind + (self.period or f"{self.seconds:g}s")

    def current(self, meter: Meter, amount: float, now: float, epoch: float) -> Meter:
        """The same, as it is now. `epoch`: Unix time at `now`."""
        if self.reset == "smooth":
            emptied = max(0.0, now - meter.mark) * amount / self.seconds
            return Meter(max(0.0, meter.used - emptied), max(meter.mark, now))
        if now < meter.mark:
            return meter
        if self.reset == "rolling":
            return Meter()
        return Meter(0.0, now + calendar_end(self.period, epoch) - epoch)

    def wait(self, meter: Meter, amount: float, now: float, cost: float) -> float | None:
        """Seconds until `cost` fits: 0.0 if it fits now, None if it is more than the window ever has."""
        if cost > amount:
            return None
        excess = meter.used + cost - amount
        if excess <= TOLERANCE:
            return 0.0
        return excess * self.seconds / amount if self.reset == "smooth" else meter.mark - now

    def charge(self, meter: Meter, now: float, cost: float) -> Meter:
        """With that much more used."""
        mark = now + self.seconds if self.reset == "rolling" and not meter.mark else meter.mark
        return Meter(meter.used + cost, mark)

    def receipt(self, meter: Meter, amount: float, now: float) -> float:
        """What settling has to know of the moment of a charge; `meter` is as it was right after it."""
        return self.reset_seconds(meter, amount, now) + now if self.reset == "smooth" else meter.mark

    def settled(
        self, meter: Meter, amount: float, now: float, *, charged: float, actual: float, receipt: float
    ) -> Meter:
        """With the actual cost in place of the one that was charged."""
        change = actual - charged
        if self.reset != "smooth":
            return Meter(max(0.0, meter.used + change), meter.mark) if meter.mark == receipt else meter
        if change < 0:
            left = min(max(0.0, (receipt - now) * amount / self.seconds), charged)
            change = -min(-change, left)
        return Meter(max(0.0, meter.used + change), meter.mark)

    def remaining(self, meter: Meter, amount: float) -> int:
        """Whole units left now; none when more was used than allowed."""
        return max(0, floor(amount - meter.used + TOLERANCE))

    def reset_seconds(self, meter: Meter, amount: float, now: float) -> float:
        """Seconds until all of it is there again."""
        if self.reset == "smooth":
            return meter.used * self.seconds / amount
        return max(0.0, meter.mark - now)


def calendar_end(period: str, epoch: float) -> float:
    """The Unix time at which this minute, hour, day, week or month of UTC is over."""
    if period in ("second", "minute", "hour", "day"):
        seconds = PERIOD_SECONDS[period]
        return (epoch // seconds + 1) * seconds
    day = datetime.fromtimestamp(epoch, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        return (day + timedelta(days=7 - day.weekday())).timestamp()
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()
