"""What will happen in a simulation, in the order of time."""

from collections.abc import Callable
from heapq import heappop, heappush

Happening = Callable[[float], None]
"""Something that happens; it is called with its moment."""


class Timeline:
    """The events of one simulation; those of one moment happen in the order in which they were added."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Happening]] = []
        self._serial = 0

    def at(self, time: float, happens: Happening) -> None:
        """Let something happen at this time."""
        self._serial += 1
        heappush(self._events, (time, self._serial, happens))

    def pass_until(self, time: float) -> None:
        """Let everything happen that is due by this time."""
        events = self._events
        while events and events[0][0] <= time:
            now, _, happens = heappop(events)
            happens(now)

    def pass_all(self) -> None:
        """Let everything happen, also what is added meanwhile."""
        events = self._events
        while events:
            now, _, happens = heappop(events)
            happens(now)
