"""Baseline `llmd`, llm-d's prefix-affinity filter: of the workers that hold the prefix, the shortest queue.

1. Only workers that hold at least `affinity_min` of the prompt are considered, unless the queue of the best of them
   is `break_ms` longer than that of the best other worker. For a share `exploration` of the requests all workers
   are considered.
2. Of these, the worker with the fewest uncached tokens in flight, in milliseconds of prefill.

llm-d calibrates the peak rate of each worker; here it is the worker's learnt speed.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.protocol import Candidate, PolicyOptions, Ranking, RouteQuery
from policies.simulation.baselines.ordered import ranking


class LlmdOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the baseline `llmd`."""

    affinity_min: Annotated[float, Meta(ge=0, le=1)] = 0.8
    break_ms: Annotated[float, Meta(ge=0, le=1e9)] = 5000
    exploration: Annotated[float, Meta(ge=0, le=1)] = 0.01


class Llmd:
    """The baseline `llmd`."""

    name: ClassVar[str] = "llmd"
    options_type: ClassVar[type[PolicyOptions]] = LlmdOptions

    def __init__(self, options: LlmdOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by affinity and queue; see the top of this file."""
        if not candidates:
            return ()
        first = int(query.draw * len(candidates))
        by_load = sorted([*candidates[first:], *candidates[:first]], key=_queue_ms)
        needed = max(1.0, self.options.affinity_min * query.prompt_tokens)
        sticky = [candidate for candidate in by_load if candidate.matched_tokens >= needed]
        others = [candidate for candidate in by_load if candidate.matched_tokens < needed]
        # The draw also breaks ties; its low digits are as good as another draw.
        explores = (query.draw * 9973) % 1 < self.options.exploration
        if not sticky or explores:
            return ranking(query, by_load, "explores" if sticky else "no affinity: fewest tokens in flight")
        if others and _queue_ms(sticky[0]) - _queue_ms(others[0]) > self.options.break_ms:
            return ranking(query, by_load, "affinity takes too long: fewest tokens in flight")
        return ranking(query, [*sticky, *others], "affinity, then fewest tokens in flight")


def _queue_ms(candidate: Candidate) -> float:
    return candidate.worker.tokens_queued * candidate.worker.speed.ms_per_token
