"""Rounds of thousands of streams that are open at the same time: memory returns to one level after each.

    memory
        |      _        _        _        _      while the streams are open
        |   __/ \\__  __/ \\__  __/ \\__  __/ \\__
        |  /      \\/       |        |        |   after each round, when nothing is held
        +--------------------------------------- rounds; only the second half of them is counted

The level rises in the first rounds and no more later: every round has its own most streams at one time, and the
allocators keep the arenas of the largest one (pymalloc gives an arena back only if nothing is left in it). Without
requests before them, the rounds also fill the index and the other bounded structures. A leak rises in the second
half as well. The verdict compares the levels after those rounds as samples.py does for requests. One in LEFT_EVERY
streams is left by its client in the middle.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean

from tests.soak.callers import Tally, call
from tests.soak.samples import BYTES_MAX, SHARE_MAX
from tests.soak.traffic import Traffic
from tests.stage.processes import GatewayProcess

COUNTED_ROUNDS_MIN = 3
ROUNDS_MIN = 2 * COUNTED_ROUNDS_MIN
LEFT_EVERY = 4
AT_ONCE = 50
"""Connections that are made in one go: a listener has a bound for those that it has not accepted."""

OPEN_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: how many streams were open at once, and the gateways' memory then and afterwards."""

    open_max: int
    memory_open: Mapping[str, int]
    """Largest memory in bytes, by gateway."""
    memory_after: Mapping[str, int]

    def line(self) -> str:
        """Return the numbers as text."""
        parts = [
            f"{name} {self.memory_open[name] / 1024**2:,.1f} MiB open, {after / 1024**2:,.1f} MiB after"
            for name, after in self.memory_after.items()
        ]
        return f"{self.open_max:,} streams at once: {'; '.join(parts)}"


Observe = Callable[[], Awaitable[tuple[int, Mapping[str, int]]]]
"""Returns the streams that are open at workers, and the memory of each gateway."""


async def stream_round(
    traffic: Traffic, count: int, gateways: Sequence[GatewayProcess], tally: Tally, observe: Observe
) -> tuple[int, Mapping[str, int]]:
    """Open so many streams, and let them end; return how many were open at once, and the largest memory."""
    tasks: list[asyncio.Task[None]] = []
    for at in range(count):
        ask = traffic.long_stream(leave_after=3 if at % LEFT_EVERY == 0 else None)
        gateway = gateways[at % len(gateways)]
        tasks.append(asyncio.create_task(call(iter([ask]), gateway.host, gateway.port, tally)))
        if at % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0.05)
    open_max, largest = 0, dict[str, int]()
    while not all(task.done() for task in tasks):
        streams, memory = await observe()
        open_max = max(open_max, streams)
        largest = {name: max(bytes_, largest.get(name, 0)) for name, bytes_ in memory.items()}
        await asyncio.sleep(OPEN_CHECK_SECONDS)
    await asyncio.gather(*tasks)
    return open_max, largest


def warm_rounds(count: int) -> int:
    """Return how many of so many rounds are not counted."""
    return count // 2


def growth(rounds: Sequence[Round], name: str) -> tuple[float, float]:
    """Return the bytes by which a gateway's memory rises over the counted rounds, and how many it may.

    Raises ValueError if there are too few rounds for a verdict.
    """
    if len(rounds) < ROUNDS_MIN:
        raise ValueError(f"{len(rounds)} rounds of streams are too few for a verdict")
    levels = [float(each.memory_after[name]) for each in rounds[warm_rounds(len(rounds)) :]]
    slope, _ = linear_regression(range(len(levels)), levels)
    return slope * (len(levels) - 1), max(SHARE_MAX * mean(levels), BYTES_MAX)
