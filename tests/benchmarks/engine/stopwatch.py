"""Times of one piece of work, on the wall and on the processor."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Times:
    """Seconds of each round. The processor's are all threads together, and little disturbed by other programs."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time what happens inside."""
        _finish_device()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        _finish_device()
        self.add(time.perf_counter() - wall, time.process_time() - cpu)

    def add(self, wall: float, cpu: float) -> None:
        """A round that was timed elsewhere."""
        self.wall.append(wall)
        self.cpu.append(cpu)

    @property
    def wall_seconds(self) -> float:
        """The median round."""
        return statistics.median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The median round."""
        return statistics.median(self.cpu)


def by_turns(works: Sequence[Callable[[], object]], rounds: int) -> list[Times]:
    """So many rounds of each, one after the other so that all meet the same weather; the first does not count."""
    found = [Times() for _ in works]
    for number in range(rounds + 1):
        for work, times in zip(works, found, strict=True):
            with (times if number else Times()).round():
                work()
    return found


def _finish_device() -> None:
    """What a CUDA device was told to do is done when this returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
