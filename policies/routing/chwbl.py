"""Policy `chwbl`, consistent hashing with bounded loads: equal prefixes go to one worker until it is busy.

    key       chained hash of the first `prefix_tokens` tokens of the prompt
    order     the workers by their rendezvous weight for that key, highest first
    bound     ceil(load_max * (open streams of all workers + 1) / workers)
    route     the first worker in the order with fewer streams than the bound

Source: Mirrokni, Thorup and Zadimoghaddam, 2018; KubeAI's default `load_max` is 1.25 too. The policy needs no
prefix index, so it is what works when there is none.

The order is a rendezvous instead of a ring: as stable when workers come and go, even without virtual nodes, and
with nothing to store. A key shorter than what all prompts have in common would send all of them to one worker;
prompts shorter than the key are distinguished by all of their blocks.
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar

from msgspec import Meta

from policies.routing.estimate import matched_tokens
from policies.routing.protocol import Candidate, PolicyOptions, Ranking, Route, RouteQuery
from policies.routing.stable_random import rendezvous_weight


class ChwblOptions(PolicyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the policy `chwbl`."""

    prefix_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)],
        Meta(description="Leading tokens of the prompt that choose its worker."),
    ] = 2048
    load_max: Annotated[
        Annotated[float, Meta(ge=1, le=1e9)],
        Meta(description="Streams that a worker may have, as a multiple of the mean of all workers."),
    ] = 1.25


class Chwbl:
    """The policy `chwbl`."""

    name: ClassVar[str] = "chwbl"
    options_type: ClassVar[type[PolicyOptions]] = ChwblOptions

    def __init__(self, options: ChwblOptions) -> None:
        self.options = options

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Rank the workers below the bound by rendezvous weight, then the others by the same weight."""
        if not candidates:
            return ()
        key = _key(query, self.options.prefix_tokens)
        streams = sum(candidate.worker.streams for candidate in candidates)
        bound = ceil(self.options.load_max * (streams + 1) / len(candidates))

        def order(candidate: Candidate) -> tuple[bool, float]:
            return (candidate.worker.streams >= bound, rendezvous_weight(candidate.worker.id, key))

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
    """Return the chained hash at the end of the prefix; a random key for a prompt without a full block."""
    if not query.blocks:
        return int(query.draw * 2**32)
    return query.blocks[min(len(query.blocks), max(1, prefix_tokens // query.block_tokens)) - 1]
