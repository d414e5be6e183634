"""Times of one piece of work, on the wall and on the processor."""

import statistics
import time
from collections.abc import Callable, Iterator
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
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    @property
    def wall_seconds(self) -> float:
        """The median round."""
        return statistics.median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The median round."""
        return statistics.median(self.cpu)


def timed(work: Callable[[], object], rounds: int) -> Times:
    """So many rounds, after one that is not counted."""
    times = Times()
    work()
    for _ in range(rounds):
        with times.round():
            work()
    return times


def _finish_device() -> None:
    """What a CUDA device was told to do is done when this returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
