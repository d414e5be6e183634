"""AIBrix, `prefix-cache`: the longest match among workers that do not run much more than the others.

If max - min of streams exceeds `imbalance_max`, the fewest streams. Else by match, then by streams: the first
that runs no more than mean + `deviations` standard deviations. Else the fewest streams. Defaults: of its code.
"""

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.protocol import Candidate, PolicyOptions, Ranking, RouteQuery
from policies.simulation.baselines.ordered import fewest_streams, ranking

Number = Annotated[float, Meta(ge=0, le=1e9)]


class AibrixOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    imbalance_max: Number = 8
    deviations: Number = 1


class Aibrix:
    name: ClassVar[str] = "aibrix"
    options_type: ClassVar[type[PolicyOptions]] = AibrixOptions

    def __init__(self, options: AibrixOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
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
