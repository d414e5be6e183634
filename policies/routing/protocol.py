"""RoutingPolicy: the promise of a rule that ranks workers for one request.

A policy is a plain function of what it is given: the query, the candidates and the moment. It keeps no state,
reads no clock, draws no numbers and does no I/O, so the same object decides in the gateway, in a simulation and
in a test, and decides alike. What a rule would want to remember or throw dice for is in the query.

Every registered policy passes tests/conformance/test_routing_policy.py.
"""

from array import array
from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from workers.worker import WorkerSnapshot

NO_BLOCKS: Hashes = array("Q")


class PolicyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a policy's own settings (`routing.options`): typed, checked, refused with their path."""


class RouteQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a policy may know of a request.

    `prompt_tokens`: its length. `output_tokens`: what it is expected to generate. `sequence`: how many requests
    for this model came before it. `draw`: a number in [0, 1), different for every request. `blocks`: chained hashes
    of its full blocks of `block_tokens` tokens. `session`: equal for the turns of one conversation, None if the
    client does not say. `answers`: how many will come, 0 if nothing is generated; `answers_prompt`: something of
    the prompt is answered too, as its log probabilities.
    """

    prompt_tokens: int
    output_tokens: int
    sequence: int
    draw: float
    blocks: Hashes = NO_BLOCKS
    block_tokens: int = 64
    session: int | None = None
    answers: int = 1
    answers_prompt: bool = False


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that may serve, and how many leading prompt tokens it holds or is about to hold.

    Of these `host_tokens` lie in host memory and `disk_tokens` further away, both from where the GPU's end.
    `doubted_tokens`: what the index knows of beyond them and does not count on.
    """

    worker: WorkerSnapshot
    matched_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    doubted_tokens: int = 0


class Terms(Protocol):
    """Named numbers, as a NamedTuple has them."""

    def _asdict(self) -> dict[str, float]: ...


class Route(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ranked choice: who decodes, who prefills where that is split, and why.

    `cost_ms`: the policy's estimate, in milliseconds. `matched_tokens`: prompt tokens that it need not compute.
    `ms_per_queued_token`: what the estimate rises by with every token that is queued there meanwhile; 0 where a
    policy does not look at that. `terms`: what the estimate was made of, for operators to see.
    """

    worker: WorkerId
    cost_ms: float
    matched_tokens: int
    reason: str
    prefill_worker: WorkerId | None = None
    ms_per_queued_token: float = 0.0
    terms: Terms | None = None


Ranking = tuple[Route, ...]
"""Best first. What a policy holds for equal may stand in any order, so that ties do not herd."""


class RoutingPolicy(Protocol):
    name: ClassVar[str]
    options_type: ClassVar[type[PolicyOptions]]

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Every candidate once, best first. No candidates, no routes. `now`: seconds on any steady clock."""
        ...
