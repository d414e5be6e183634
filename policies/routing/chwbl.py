"""Consistent hashing with bounded loads: equal beginnings go to the same worker, unless it has more than its share.

The first `prefix_tokens` of the prompt are the key. For each key the workers stand in an order of their own,
and the request goes to the first of them whose streams are below `load_max` times the mean (Mirrokni, Thorup
and Zadimoghaddam, 2018; KubeAI's default is 1.25 too). It asks no index, so it is what works when there is
none.

The order is a rendezvous instead of a ring: as stable when workers come and go, even without virtual nodes, and
without anything to keep. A key shorter than what all prompts have in common would send all of them to one worker;
prompts shorter than it are told apart by all of their blocks.
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.estimate import matched_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery
from policies.routing.stable_random import affinity


class ChwblOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prefix_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)], Meta(description="Leading tokens that are the key.")
    ] = 2048
    load_max: Annotated[
        Annotated[float, Meta(ge=1, le=1e9)], Meta(description="Streams of a worker, of the mean of all.")
    ] = 1.25


class Chwbl:
    name: ClassVar[str] = "chwbl"
    options_type: ClassVar[type[PolicyOptions]] = ChwblOptions

    def __init__(self, options: ChwblOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        if not candidates:
            return ()
        key = _key(query, self.options.prefix_tokens)
        streams = sum(candidate.worker.streams for candidate in candidates)
        bound = ceil(self.options.load_max * (streams + 1) / len(candidates))

        def order(candidate: Candidate) -> tuple[bool, float]:
            return (candidate.worker.streams >= bound, affinity(candidate.worker.id, key))

        return tuple(
            Route(
                worker=candidate.worker.id,
                cost_ms=0.0,
                matched_tokens=matched_tokens(query, candidate),
                reason=f"choice {place} for this prefix, {candidate.worker.streams} of {bound} streams",
            )
            for place, candidate in enumerate(sorted(candidates, key=order), start=1)
        )


def _key(query: RouteQuery, prefix_tokens: int) -> int:
    """The chained hash that ends the prefix: it names all of it. A prompt without a full block has none."""
    if not query.blocks:
        return int(query.draw * 2**32)
    return query.blocks[min(len(query.blocks), max(1, prefix_tokens // query.block_tokens)) - 1]
