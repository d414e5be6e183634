"""How busy an engine is: a value that others may read while it works on."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.scheduler.plan import StepPlan
from workers.engine.scheduler.scheduler import Scheduler

WINDOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoads:
    """Counts at one moment. Idle cached blocks are not "used": they are given up as soon as they are needed."""

    running: int
    waiting: int
    waiting_uncached_tokens: int
    used_tokens: int
    idle_tokens: int
    """Cached, and in nobody's use."""
    pool_tokens: int
    generated_per_second: float
    cache_hit_rate: float
    """Cached prompt tokens / prompt tokens, of all requests admitted since the start."""


class LoadMeter:
    """Counts what steps did, and puts it together with what the queues say."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._sampled_tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def record(self, plan: StepPlan, generated: int) -> None:
        """One step was computed, and `generated` tokens came out of it."""
        now = self._clock()
        sampled = [item for item in plan.items if item.samples]
        self._samples.append((now, generated))
        self._sampled_tokens += generated
        while self._samples[0][0] < now - WINDOW_SECONDS:
            self._sampled_tokens -= self._samples.popleft()[1]
        # A request is counted once, when its first token comes.
        for item in sampled:
            if item.sequence.num_generated == 1:
                self._prompt_tokens += item.sequence.num_prompt
                self._cached_tokens += item.sequence.cached_tokens or 0

    def read(self, scheduler: Scheduler, tree: PrefixTree) -> EngineLoads:
        """The loads now."""
        pool = tree.pool
        return EngineLoads(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            waiting_uncached_tokens=sum(
                len(sequence.tokens) - sequence.expected_cached for sequence in scheduler.waiting
            ),
            used_tokens=(pool.capacity - tree.available_blocks) * pool.block_size,
            idle_tokens=(tree.available_blocks - pool.free_blocks) * pool.block_size,
            pool_tokens=pool.capacity * pool.block_size,
            # An idle engine generates nothing, whatever it did a second ago.
            generated_per_second=self._rate() if scheduler.has_work else 0.0,
            cache_hit_rate=self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0,
        )

    def _rate(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        # The first sample only marks where the window begins: its own tokens were made before.
        seconds = self._samples[-1][0] - self._samples[0][0]
        tokens = self._sampled_tokens - self._samples[0][1]
        return tokens / seconds if seconds > 0 else 0.0
