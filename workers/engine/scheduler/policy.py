"""The scheduling policy: ranks, when a batch begins, and how many tokens of a prompt a step computes at most.

It consists of pure rules, without queue or clock.

rank of a sequence, smallest first     (level, urgency, order)

    level     priority + the epoch in which it came     one class of priority is worth `ageing_seconds` of waiting
    urgency   when its prefill must begin at the latest to keep its deadline; infinite without a deadline
    order     first come, first served

A rank never changes, so a sorted queue stays sorted. No sequence starves: a sequence of the next better priority
overtakes only sequences that came less than two epochs before it. The sequence that ranks last has the lowest
priority or the most slack, and is the one that Scheduler._make_room preempts.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from workers.engine.config.engine_config import Batching, EngineConfig, PriorityFirst
from workers.engine.scheduler.sequence import Sequence

PRIORITY_MAX = 1000
"""The largest priority of either sign: a request beyond it could be overtaken for hours."""


class Rank(NamedTuple):
    """The place of a sequence in the queue; ranks are compared from left to right, and the smallest goes first."""

    level: int
    urgency: float
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """The options of a scheduler; each option is one step from a naive engine to a modern one."""

    batching: Batching = "continuous"
    """`static`: a batch starts when the last sequence of the previous one has finished, and is computed padded."""
    chunked_prefill: bool = True
    """Whether prompts are cut to the rest of the token budget; if not, a prompt is computed whole, however long."""
    prefix_caching: bool = True
    """Whether sequences share the blocks of equal prefixes."""
    priority_first: PriorityFirst = "lower"
    """Whether a lower number goes first, as in vLLM, or a higher one, as in SGLang by default."""
    ageing_seconds: float = 60.0
    """The waiting time that raises a sequence by one priority."""

    @classmethod
    def from_config(cls, config: EngineConfig) -> "SchedulingPolicy":
        """Return the scheduler's part of the engine's settings."""
        return cls(
            batching=config.batching,
            chunked_prefill=config.chunked_prefill,
            prefix_caching=config.prefix_caching,
            priority_first=config.priority_first,
            ageing_seconds=config.ageing_seconds,
        )

    @property
    def static(self) -> bool:
        """Whether a batch starts only when the previous one has ended."""
        return self.batching == "static"

    @property
    def lockstep(self) -> bool:
        """Whether a batch is computed as a whole, whatever the token budget."""
        return self.static and not self.chunked_prefill

    def rank(self, sequence: Sequence, prefill_seconds: float = 0.0) -> Rank:
        """Return the rank of a sequence with a prefill that is expected to take `prefill_seconds`."""
        sign = 1 if self.priority_first == "lower" else -1
        epoch = math.floor(sequence.arrival / self.ageing_seconds)
        urgency = math.inf if sequence.deadline is None else sequence.deadline - prefill_seconds
        return Rank(sign * sequence.priority + epoch, urgency, sequence.order)

    def tokens_in_step(self, pending: int, budget: int, *, first: bool) -> int:
        """Return how many of a prompt's pending tokens this step computes.

        A prompt that may not be cut waits for a step with enough budget.

        Args:
            pending: The prompt's tokens that are not computed yet.
            budget: The tokens that the step has left.
            first: Whether this is the first prompt of the step, which is computed in any case.
        """
        if self.chunked_prefill:
            return min(pending, budget)
        if self.lockstep or first or pending <= budget:
            return pending
        return 0


def expired(sequence: Sequence, now: float) -> bool:
    """Return whether the deadline passed before the first token; a request that has begun to answer continues."""
    return sequence.deadline is not None and now >= sequence.deadline and sequence.num_generated == 0
