"""Baseline `sglang`, the `cache_aware` policy of SGLang's gateway: the longest match, while streams are in balance.

1. If max - min > `balance_abs` and max > `balance_rel` * min (streams of the workers): the fewest streams.
2. Else the worker with the longest match, if its share of the prompt exceeds `cache_threshold`.
3. Else the worker with the fewest streams.

The defaults are those of its library.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.protocol import Candidate, PolicyOptions, Ranking, RouteQuery
from policies.simulation.baselines.ordered import fewest_streams, ranking

Number = Annotated[float, Meta(ge=0, le=1e9)]


class SglangOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the baseline `sglang`."""

    cache_threshold: Number = 0.5
    balance_abs: Number = 32
    balance_rel: Number = 1.1


class Sglang:
    """The baseline `sglang`."""

    name: ClassVar[str] = "sglang"
    options_type: ClassVar[type[PolicyOptions]] = SglangOptions

    def __init__(self, options: SglangOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by match and streams; see the top of this file."""
        if not candidates:
            return ()
        by_streams = fewest_streams(candidates)
        least, most = by_streams[0].worker.streams, by_streams[-1].worker.streams
        if most - least > self.options.balance_abs and most > self.options.balance_rel * least:
            return ranking(query, by_streams, "out of balance: fewest streams")
        best = max(by_streams, key=lambda candidate: candidate.matched_tokens)
        if best.matched_tokens > self.options.cache_threshold * query.prompt_tokens:
            rest = [candidate for candidate in by_streams if candidate is not best]
            return ranking(query, [best, *rest], "longest match")
        return ranking(query, by_streams, "match too short: fewest streams")
