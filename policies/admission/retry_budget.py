"""The retry budget: retries may be at most a share of the requests of the last seconds.

When workers fail for a reason that they have in common, every request tried three times is three times the load,
and keeps the workers down. So retries are limited to a share of the first tries within the same seconds; where few
requests come the share would be nothing, and a fixed number (`at_least`) is allowed all the same.

    allowed = max(at_least, share * requests) - retries       both counted within the last `seconds`

    |--------------- seconds ---------------|
    [ 12 / 1 ][ 9 / 0 ][ 14 / 3 ] ... [ 7 / 2 ]    requests / retries, in SLOTS slots of equal length
    <-- dropped, a slot at a time            now

The current slot is not over yet, so the window is up to one slot shorter than `seconds`.

Spent by gateway/dispatch: retries.py (another worker), attempts.py (a worker after a provider), reservations.py
(another model), hedged_opening.py. First tries are recorded by attempts.py.
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
    """A limit on retries within `seconds`: at most `share` of the requests, or `at_least` where that is more.

    Times are seconds on one clock that never goes back.
    """

    def __init__(self, *, share: float, at_least: int, seconds: float) -> None:
        self.spent = 0
        """Retries that were allowed since the start."""
        self.refused = 0
        """Retries that were refused since the start."""
        self._share = share
        self._at_least = at_least
        self._slot_seconds = seconds / SLOTS
        self._slots: deque[_Slot] = deque()
        self._requests = 0
        self._retries = 0

    def record_request(self, now: float) -> None:
        """Count a request that is sent to its first worker."""
        self._slot(now).requests += 1
        self._requests += 1

    def remaining(self, now: float) -> int:
        """Return how many retries are allowed now."""
        self._slot(now)
        return max(0, int(max(self._at_least, self._share * self._requests)) - self._retries)

    def try_spend(self, now: float) -> bool:
        """Take one retry from the budget; return False, and count a refusal, if none is left."""
        slot = self._slot(now)
        if not self.remaining(now):
            self.record_refusal()
            return False
        slot.retries += 1
        self._retries += 1
        self.spent += 1
        return True

    def give_back(self, now: float) -> None:
        """Return a retry that was taken from the budget and not sent."""
        self._slot(now).retries -= 1
        self._retries -= 1
        self.spent -= 1

    def record_refusal(self) -> None:
        """Count a retry that was not sent because the budget was spent."""
        self.refused += 1

    def _slot(self, now: float) -> _Slot:
        """Return the current slot; forget slots that are too old."""
        slots, number = self._slots, int(now / self._slot_seconds)
        if slots and slots[-1].number >= number:
            return slots[-1]
        while slots and slots[0].number <= number - SLOTS:
            old = slots.popleft()
            self._requests -= old.requests
            self._retries -= old.retries
        slots.append(_Slot(number))
        return slots[-1]
