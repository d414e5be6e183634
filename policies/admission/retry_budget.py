"""How many requests may be sent to one more worker: a share of those that came of late.

When workers fail for a reason that they have in common, every request tried three times is three times the load,
and keeps them down. So what is sent a second time is held to a share of what was sent a first time within the same
seconds; where few requests come the share would be nothing, and so many are allowed all the same.

    |--------------- seconds ---------------|
    [ 12 / 1 ][ 9 / 0 ][ 14 / 3 ] ... [ 7 / 2 ]    requests / retries, in SLOTS slots of equal length
    <-- forgotten, a slot at a time        now

The slot of now is not over yet, so the window is up to one slot shorter than `seconds`.
"""

from collections import deque
from dataclasses import dataclass

SLOTS = 10


@dataclass(slots=True)
class _Slot:
    number: int
    requests: int = 0
    retries: int = 0


class RetryBudget:
    """Retries within `seconds`: at most `share` of the requests, or `at_least` where that is more.

    `spent`, `refused`: so many were let go and were not, ever. Times are seconds on one clock that never goes back.
    """

    def __init__(self, *, share: float, at_least: int, seconds: float) -> None:
        self.spent = 0
        self.refused = 0
        self._share = share
        self._at_least = at_least
        self._slot_seconds = seconds / SLOTS
        self._slots: deque[_Slot] = deque()
        self._requests = 0
        self._retries = 0

    def request(self, now: float) -> None:
        """A request is sent to its first worker."""
        self._slot(now).requests += 1
        self._requests += 1

    def left(self, now: float) -> int:
        """So many may be sent again."""
        self._slot(now)
        return max(0, int(max(self._at_least, self._share * self._requests)) - self._retries)

    def spend(self, now: float) -> bool:
        """One is to be sent again: may it?"""
        slot = self._slot(now)
        if not self.left(now):
            self.refuse()
            return False
        slot.retries += 1
        self._retries += 1
        self.spent += 1
        return True

    def refuse(self) -> None:
        """One was not, as none was left."""
        self.refused += 1

    def _slot(self, now: float) -> _Slot:
        """That of now; what is too old is forgotten."""
        slots, number = self._slots, int(now / self._slot_seconds)
        if slots and slots[-1].number >= number:
            return slots[-1]
        while slots and slots[0].number <= number - SLOTS:
            gone = slots.popleft()
            self._requests -= gone.requests
            self._retries -= gone.retries
        slots.append(_Slot(number))
        return slots[-1]
