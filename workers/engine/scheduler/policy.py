"""Whose turn it is, and when a batch begins: values and pure rules. No queue, no tensor, no clock.

rank of a sequence, smallest first     (level, urgency, order)

    level     priority + the epoch in which it came     one class of priority is worth `ageing_seconds` of waiting
    urgency   when its prefill must begin at the latest to keep its deadline; without a deadline, never
    order     first come, first served

A rank never changes, so a queue that is sorted stays sorted. And nobody starves: whoever is one class better
overtakes only those that came less than two epochs before it. Who ranks last has the lowest priority or the most
slack, and is the one to preempt.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from workers.engine.config.engine_config import Batching, EngineConfig, PriorityFirst
from workers.engine.scheduler.sequence import Sequence

PRIORITY_MAX = 1000
"""Of either sign: a class beyond it would be overtaken for hours."""


class Rank(NamedTuple):
    """Compared from left to right; the smallest goes first."""

    level: int
    urgency: float
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """The choices that a scheduler is made with; each is one rung from the naive to the modern."""

    batching: Batching = "continuous"
    """"static": a batch is let in when the last of the one before has finished, and is computed padded."""
    chunked_prefill: bool = True
    """Cut prompts to what the token budget has left. Without it a prompt is computed whole, however long."""
    prefix_caching: bool = True
    """Read blocks that others have computed, and leave one's own to them."""
    priority_first: PriorityFirst = "lower"
    """Whether a lower number goes first, as in vLLM, or a higher one, as SGLang has it by default."""
    ageing_seconds: float = 60.0
    """How long a wait makes up for one class of priority."""

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
        """One whole batch after the other."""
        return self.batching == "static"

    @property
    def lockstep(self) -> bool:
        """A batch is computed as one, whatever the token budget."""
        return self.static and not self.chunked_prefill

    def rank(self, sequence: Sequence, prefill_seconds: float = 0.0) -> Rank:
        """The place of a sequence whose prefill is expected to take so long."""
        sign = 1 if self.priority_first == "lower" else -1
        epoch = math.floor(sequence.arrival / self.ageing_seconds)
        urgency = math.inf if sequence.deadline is None else sequence.deadline - prefill_seconds
        return Rank(sign * sequence.priority + epoch, urgency, sequence.order)

    def share(self, pending: int, budget: int, *, first: bool) -> int:
        """How many of a prompt's pending tokens this step computes, with `budget` tokens left in it.

        A prompt that may not be cut waits for a step that it fits in; the `first` of a step goes in any case.
        """
        if self.chunked_prefill:
            return min(pending, budget)
        if self.lockstep or first or pending <= budget:
            return pending
        return 0


def expired(sequence: Sequence, now: float) -> bool:
    """Has the moment passed by which the first token was wanted? A request that has begun to answer goes on."""
    return sequence.deadline is not None and now >= sequence.deadline and sequence.num_generated == 0
