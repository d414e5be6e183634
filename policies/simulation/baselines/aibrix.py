"""Baseline `aibrix`, the `prefix-cache` routing of AIBrix: the longest match among workers of ordinary load.

1. If max - min of the workers' streams exceeds `imbalance_max`: the worker with the fewest streams.
2. Else, in the order of the longest match and then the fewest streams: the first worker with a match and at most
   mean + `deviations` standard deviations of streams.
3. Else the worker with the fewest streams.

The defaults are those of its code.
"""

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.protocol import Candidate, PolicyOptions, Ranking, RouteQuery
from policies.simulation.baselines.ordered import fewest_streams, ranking

Number = Annotated[float, Meta(ge=0, le=1e9)]


class AibrixOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the baseline `aibrix`."""

    imbalance_max: Number = 8
    deviations: Number = 1


class Aibrix:
    """The baseline `aibrix`."""

    name: ClassVar[str] = "aibrix"
    options_type: ClassVar[type[PolicyOptions]] = AibrixOptions

    def __init__(self, options: AibrixOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank by match and streams; see the top of this file."""
        if not candidates:
            return ()
        by_streams = fewest_streams(candidates)
        if by_streams[-1].worker.streams - by_streams[0].worker.streams > self.options.imbalance_max:
            return ranking(query, by_streams, "out of balance: fewest streams")
        streams = [candidate.worker.streams for candidate in candidates]
        bound = fmean(streams) + self.options.deviations * pstdev(streams)
        by_match = sorted(by_streams, key=lambda candidate: -candidate.matched_tokens)
        for candidate in by_match:
            if candidate.matched_tokens and candidate.worker.streams <= bound:
                rest = [other for other in by_streams if other is not candidate]
                return ranking(query, [candidate, *rest], "longest match within a deviation of the mean")
        return ranking(query, by_streams, "no match: fewest streams")
