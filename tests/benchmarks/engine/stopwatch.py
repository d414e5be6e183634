"""The time of one piece of work, by the wall clock and of processor time."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Times:
    """Seconds of each round. Processor time is of all threads together, and little disturbed by other programs."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Time the body of the `with` statement."""
        _finish_device()
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        _finish_device()
        self.add(time.perf_counter() - wall, time.process_time() - cpu)

    def add(self, wall: float, cpu: float) -> None:
        """Add a round that was timed elsewhere."""
        self.wall.append(wall)
        self.cpu.append(cpu)

    @property
    def wall_seconds(self) -> float:
        """The wall time of the median round."""
        return statistics.median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The processor time of the median round."""
        return statistics.median(self.cpu)


def by_turns(works: Sequence[Callable[[], object]], rounds: int) -> list[Times]:
    """Time each work in turn, so that disturbances affect all alike; the first round does not count."""
    found = [Times() for _ in works]
    for number in range(rounds + 1):
        for work, times in zip(works, found, strict=True):
            with (times if number else Times()).round():
                work()
    return found


def _finish_device() -> None:
    """Wait until a CUDA device has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
