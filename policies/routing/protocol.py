"""RoutingPolicy, the interface of a rule that ranks workers for one request, and the values it works on.

    RouteQuery (the request) + Candidates (the workers) + now  --policy.rank-->  Ranking (Routes, best first)

A policy is a pure function of what it is given: the query, the candidates and the moment. It keeps no state, reads
no clock, draws no random numbers and does no I/O, so the same object decides in the gateway, in a simulation and in
a test, and decides alike. Numbers that a rule would otherwise keep or draw at random are in the query.

Every registered policy passes tests/conformance/test_routing_policy.py.
"""

from array import array
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from radix_cache.blocks import Hashes
from radix_cache.match import WorkerId
from workers.worker import WorkerSnapshot

NO_BLOCKS: Hashes = array("Q")


class PolicyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a policy's own settings (`routing.options`): typed and checked; an error names its path."""


class FleetTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sums over all workers that may serve a request, for a policy that is given a shortlist of them."""

    workers: int
    """How many workers there are."""
    backlog_ms: float
    """Milliseconds of queued prefill, summed over the workers; of each, those that count (compute_price.py)."""
    streams: int
    """Requests under way on all workers."""
    requests_awaiting: int = 0
    """Requests that wait for one of these workers each."""
    tokens_per_ms: float
    """Uncached prompt tokens that all workers together compute in a millisecond."""


class SharedPrefix(NamedTuple):
    """A prefix of the prompt that other requests, under way or waiting, have too."""

    tokens: int
    """Its length from the beginning of the prompt; each is longer than the one before it."""
    requests: int
    """How many other requests have it, at all gateways."""
    holders: int
    """About how many workers hold it or are about to."""
    regret_ms: float = 0.0
    """What requests have waited for one more copy of what it adds to the one before it (copy_regrets.py)."""
    computed: bool = True
    """Whether a worker is known to hold it; False: it is only on its way to its holders."""


class CopyRegret(NamedTuple):
    """What a request waits since too few workers hold a part of its prompt that other requests have, too."""

    block: int
    """The hash of the first block of the part."""
    holders: int
    """About how many workers hold it or are about to."""
    wait_ms: float | None
    """None: the request makes one more copy, and what was waited before is paid."""


class RouteQuery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The request, as a policy gets it."""

    prompt_tokens: int
    """Length of the prompt."""
    output_tokens: int
    """Tokens that the request is expected to generate."""
    sequence: int
    """How many requests for this model came before this one."""
    draw: float
    """A random number in [0, 1), different for every request."""
    blocks: Hashes = NO_BLOCKS
    """Chained hashes of the prompt's full blocks."""
    block_tokens: int = 64
    """Tokens of one block."""
    session: int | None = None
    """Equal for the turns of one conversation; None if the client names no session."""
    answers: int = 1
    """How many answers (choices) are generated; 0 if nothing is generated."""
    answers_prompt: bool = False
    """Whether the answer includes something of the prompt too, such as its log probabilities."""
    shared: Sequence[SharedPrefix] = ()
    """Prefixes of the prompt that other requests have, the shortest first."""
    requests_waiting: int = 0
    """How many other requests for the model wait for a worker; known where `shared` is not empty."""
    fleet: FleetTotals | None = None
    """Sums over all workers where the candidates are a shortlist; None: the candidates are all workers."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that may serve the request, and how much of the prompt is cached there or about to be."""

    worker: WorkerSnapshot
    matched_tokens: int = 0
    """Leading prompt tokens that the worker holds or is about to hold, in any memory."""
    host_tokens: int = 0
    """Of the matched tokens, those in host memory; they follow those on the GPU."""
    disk_tokens: int = 0
    """Of the matched tokens, those on disk or further away; they follow those on the GPU."""
    doubted_tokens: int = 0
    """Tokens beyond the matched ones that are in the index, but are not certain."""


class RouteTerms(Protocol):
    """The named numbers that a cost estimate is made of; any NamedTuple of floats will do."""

    def _asdict(self) -> dict[str, float]: ...


class Route(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ranked choice of a policy: which worker serves the request, and why."""

    worker: WorkerId
    """The worker that answers (the decode worker, where prefill and decode are split)."""
    cost_ms: float
    """The policy's cost estimate, in milliseconds."""
    matched_tokens: int
    """Prompt tokens that the worker need not compute."""
    reason: str = ""
    """Why the worker has this rank, for operators to read.

    Every policy gives a reason. A subclass may override the field with a property that writes the text when it is
    read, since the reasons of routes that are not chosen are never read.
    """
    prefill_worker: WorkerId | None = None
    """The worker that computes the prompt, where prefill and decode are split."""
    ms_per_queued_token: float = 0.0
    """How much the estimate rises with every token queued there meanwhile; 0 if the policy does not use it."""
    computed_tokens: int = 0
    """Tokens queued there that the estimate takes off, since they must have been computed."""
    terms: RouteTerms | None = None
    """The terms of the estimate, for operators to read."""
    regrets: tuple[CopyRegret, ...] = ()
    """Regrets that are kept if a new request takes this route, for later ones (SharedPrefix.regret_ms)."""


Ranking = tuple[Route, ...]
"""Routes, best first. Routes that a policy counts as equal may be in any order, so that ties do not herd."""


class RoutingPolicy(Protocol):
    """A rule that ranks workers for one request; see the top of this file."""

    name: ClassVar[str]
    options_type: ClassVar[type[PolicyOptions]]

    # A policy may also declare `shortlist: ClassVar[bool] = True`. Of a large fleet it is then given only the
    # workers that may be best, with sums over all of them (RouteQuery.fleet); without it, all workers.

    def rank(self, query: RouteQuery, candidates: Sequence[Candidate], now: float) -> Ranking:
        """Return every candidate once, best first; without candidates, no routes.

        `now` is in seconds on any steady clock.
        """
        ...
