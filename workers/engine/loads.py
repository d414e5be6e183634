"""The load of an engine: a value that other threads may read while the engine runs."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.scheduler.plan import StepPlan
from workers.engine.scheduler.scheduler import Scheduler

WINDOW_SECONDS = 5.0
"""The time over which the rate of generated tokens is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoads:
    """How busy an engine is at one moment."""

    running: int
    """Running sequences."""
    waiting: int
    """Waiting sequences."""
    waiting_uncached_tokens: int
    """Tokens of the waiting sequences that are not expected in the prefix cache."""
    used_tokens: int
    """Tokens of the blocks that sequences use. Idle cached blocks do not count: they are evicted when needed."""
    idle_tokens: int
    """Tokens of the blocks that are cached, and that no sequence uses."""
    pool_tokens: int
    """Tokens that the KV pool holds."""
    generated_per_second: float
    """Tokens generated per second, over the last WINDOW_SECONDS."""
    cache_hit_rate: float
    """Cached prompt tokens / prompt tokens, of all requests admitted since the start."""


class LoadMeter:
    """Measures the load of an engine: counts the tokens of each step, and reads the queues and the KV pool."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._sampled_tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def record(self, plan: StepPlan, generated: int) -> None:
        """Count one computed step that generated `generated` tokens."""
        now = self._clock()
        sampled = [item for item in plan.items if item.samples]
        self._samples.append((now, generated))
        self._sampled_tokens += generated
        while self._samples[0][0] < now - WINDOW_SECONDS:
            self._sampled_tokens -= self._samples.popleft()[1]
        # A request is counted once, with its first token.
        for item in sampled:
            if item.sequence.num_generated == 1:
                self._prompt_tokens += item.sequence.num_prompt
                self._cached_tokens += item.sequence.cached_tokens or 0

    def read(self, scheduler: Scheduler, tree: PrefixTree) -> EngineLoads:
        """Return the load at this moment."""
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
            # An idle engine generates nothing, whatever its rate was a second ago.
            generated_per_second=self._rate() if scheduler.has_work else 0.0,
            cache_hit_rate=self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0,
        )

    def _rate(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        # The first sample only marks the window's beginning: its own tokens were generated before.
        seconds = self._samples[-1][0] - self._samples[0][0]
        tokens = self._sampled_tokens - self._samples[0][1]
        return tokens / seconds if seconds > 0 else 0.0
