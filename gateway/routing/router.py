"""Ranks the workers for one request by the routing policy, from copies in the process: no I/O.

The router gathers the input of a policy; the policy, by default policies/routing/cost.py, weighs the cached
prefix against the load and returns the order. gateway/dispatch/acquisition takes the first worker of it that has
room, in the request's turn.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from random import Random
from typing import Protocol

import msgspec

from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.kv_index.feedback import Feedback
from gateway.routing.shadow_policy import ShadowPolicy
from gateway.routing.shortlist import shortlist
from policies.admission.awaited_tokens import AwaitedTokens
from policies.load_order.least_loaded import RANKED_MAX
from policies.routing import disaggregation
from policies.routing.checked_policy import PolicyContractBroken
from policies.routing.copy_regrets import RememberedRegrets
from policies.routing.protocol import (
    Candidate,
    FleetTotals,
    Ranking,
    RouteQuery,
    RoutingPolicy,
    SharedPrefix,
)
from radix_cache.index import PrefixIndex
from radix_cache.match import NO_MATCH, PrefixMatch, WorkerId
from radix_cache.tiers import Tier, TierBlocks
from workers.worker import WorkerSnapshot

WORKER_ID = attrgetter("id")


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The ranking of the workers for one request at one moment, and what it was made from."""

    routes: Ranking
    """Best first."""
    by_shadow: bool
    """Whether the second routing policy ranked them."""
    candidates: list[Candidate]
    query: RouteQuery
    match: PrefixMatch
    """The index's match of the prompt."""


class RequestToRank(Protocol):
    """The fields of a request that a ranking needs; PendingRequest has them."""

    ctx: RequestContext
    prompt: PromptBlocks
    sequence: int
    """Its number among the requests for its model."""
    output_tokens: int
    """The expected length of its answers."""
    session: int | None
    waits: bool
    """Whether the prefix index counts it among the requests that wait."""
    by_shadow: bool
    """Whether the second routing policy decides."""


class GatewaysAlive(Protocol):
    """The gateway processes that serve the same workers."""

    @property
    def gateways(self) -> int:
        """How many gateways are alive."""
        ...


class Router:
    """Ranks the workers for each request by the routing policy of the settings; it reserves and sends nothing."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: PrefixIndex,
        feedback: Feedback,
        policy: RoutingPolicy,
        random: Random,
        shadow: ShadowPolicy | None = None,
        prefill_tokens_min: int = 0,
        gateways: GatewaysAlive | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prefill_tokens_min`: see policies/routing/disaggregation.py, `alone_tokens`.

        `gateways`: how many processes serve the same workers; None: this one alone. `random` draws the numbers that
        policies break ties with. `clock`: seconds, never backwards.
        """
        self._fleet = fleet
        self._index = index
        self._feedback = feedback
        self._policy = policy
        self._random = random
        self.shadow = shadow
        self._prefill_tokens_min = prefill_tokens_min
        self._clock = clock
        self.policy_name = policy.name
        self._shortlists = _takes_shortlist(policy, shadow)
        self._sequence: dict[str, int] = {}
        self._gateways = gateways
        self._regrets = RememberedRegrets()
        self.awaited = AwaitedTokens[str, WorkerId]()
        """What waits here for each worker; requests by their id."""

    def reconfigure(
        self, policy: RoutingPolicy, shadow: ShadowPolicy | None, prefill_tokens_min: int
    ) -> None:
        """Rank by these policies from the next request on."""
        self._policy, self.shadow, self._prefill_tokens_min = policy, shadow, prefill_tokens_min
        self.policy_name = policy.name
        self._shortlists = _takes_shortlist(policy, shadow)

    def arrival(self, model: str) -> int:
        """Return the number of a new request among those for its model; it keeps it, however often it is ranked."""
        number = self._sequence.get(model, 0)
        self._sequence[model] = number + 1
        return number

    def next_number(self, model: str) -> int:
        """Return the number that the next request for the model will have."""
        return self._sequence.get(model, 0)

    def rank(
        self,
        request: RequestToRank,
        without: Collection[WorkerId] = (),
        *,
        all_workers: bool = False,
        known_only: bool = False,
    ) -> Decision:
        """Rank the workers for a request at this moment; `without` the workers that were tried.

        The ranking is empty where no worker is left; the caller then raises NoWorker. Of a large fleet only the
        workers that may be best are ranked (shortlist.py). `all_workers`: rank every one, to explain the ranking of
        a request that is not sent. `known_only`: rank none for a prompt of which the index has no block.
        """
        ctx, prompt, waits = request.ctx, request.prompt, request.waits
        model, now = ctx.model.name, self._clock()
        match = self._index.match(prompt.namespace, prompt.hashes)
        if known_only and match is NO_MATCH:
            query = _query(request, 0.0, (), 0, None)
            return Decision(routes=(), by_shadow=False, candidates=[], query=query, match=match)
        shared = _shared_prefixes(match, prompt, self._regrets, now, waits) if match.shared else ()
        requests_waiting = self._index.waiting(model) - int(waits) if shared else 0

        # The candidates: the workers that serve the model, and that the carrier reaches.
        workers, fleet_totals = self._fleet.serving(model), None
        if ctx.carrier is not None and (reachable := ctx.carrier.addresses) is not None:
            without = {*without, *(worker.id for worker in workers if worker.address not in reachable)}
        if len(workers) > RANKED_MAX and self._shortlists and not all_workers:
            ordered = self._fleet.least_loaded(model)
            if ordered is not None:
                workers, fleet_totals = shortlist(
                    ordered, self._fleet, match, prompt, request.output_tokens, without, now
                )
        candidates = self._candidates(workers, prompt, match, without, now)

        # Their ranking by the routing policy, or by the second one where that decides and does not fail.
        query = _query(request, self._random.random(), shared, requests_waiting, fleet_totals)
        routes = self._rank_by_shadow(query, candidates, now) if request.by_shadow else None
        by_shadow = routes is not None
        if routes is None:
            routes = disaggregation.rank_with_pairs(
                self._policy, query, candidates, now, alone_tokens=self._prefill_tokens_min
            )
        if shared and routes and not waits and not all_workers:
            self._regrets.record(routes[0].regrets, now, self._gateways.gateways if self._gateways else 1)
        return Decision(routes=routes, by_shadow=by_shadow, candidates=candidates, query=query, match=match)

    def _candidates(
        self,
        workers: Sequence[Worker],
        prompt: PromptBlocks,
        match: PrefixMatch,
        without: Collection[WorkerId],
        now: float,
    ) -> list[Candidate]:
        """Return the workers with what they hold of the prompt, except those in `without`."""
        candidates: list[Candidate] = []
        awaited: Mapping[WorkerId, int] = self.awaited.tokens
        if awaited:
            awaited = self.awaited.counted(worker.id for worker in workers if worker.id not in without)
        repeated = self._index.repeated_blocks(list(map(WORKER_ID, workers)))
        for worker in workers:
            if worker.id in without:
                continue
            # Most workers of a large fleet hold nothing of a prompt, and need no second look.
            known = 0 if match is NO_MATCH else match.blocks(worker.id)
            snapshot = worker.snapshot(now)
            # Without a known capacity no policy uses how full the KV memory is.
            if worker.id in repeated and snapshot.kv_tokens_max:
                kv_tokens = snapshot.kv_tokens - repeated[worker.id] * prompt.namespace.block_size
                snapshot = msgspec.structs.replace(snapshot, kv_tokens=max(0, kv_tokens))
            if worker.id in self.awaited.requests:
                snapshot = msgspec.structs.replace(
                    snapshot,
                    tokens_queued=snapshot.tokens_queued + awaited.get(worker.id, 0),
                    requests_awaiting=self.awaited.requests[worker.id],
                )
            candidates.append(
                self._candidate(snapshot, prompt, match, match.tiers(worker.id), known)
                if known
                else Candidate(worker=snapshot)
            )
        return candidates

    def _candidate(
        self, worker: WorkerSnapshot, prompt: PromptBlocks, match: PrefixMatch, held: TierBlocks, known: int
    ) -> Candidate:
        """Return a worker that is known to hold `known` leading blocks; doubted blocks are kept apart."""
        counted = self._feedback.trusted_blocks(match, worker.id)
        matched = prompt.matched_tokens(counted)
        doubted = prompt.matched_tokens(known) - matched if known > counted else 0
        if held.gpu >= counted:
            return Candidate(worker=worker, matched_tokens=matched, doubted_tokens=doubted)
        gpu, near, matched = map(prompt.matched_tokens, held.at_most(Tier.DISK, counted))
        return Candidate(
            worker=worker,
            matched_tokens=matched,
            host_tokens=near - gpu,
            disk_tokens=matched - near,
            doubted_tokens=doubted,
        )

    def _rank_by_shadow(
        self, query: RouteQuery, candidates: Sequence[Candidate], now: float
    ) -> Ranking | None:
        """Return the second policy's ranking; None if it fails, so that the first policy decides."""
        if self.shadow is None:
            return None
        try:
            return self._rank(self.shadow.policy, query, candidates, now)
        except PolicyContractBroken as err:
            self.shadow.count_failure(err)
            return None

    def _rank(
        self, policy: RoutingPolicy, query: RouteQuery, candidates: Sequence[Candidate], now: float
    ) -> Ranking:
        return disaggregation.rank_with_pairs(
            policy, query, candidates, now, alone_tokens=self._prefill_tokens_min
        )

    def shadow_decides(self) -> bool:
        """Draw whether the second policy decides the next request."""
        return self.shadow is not None and self._random.random() < self.shadow.share

    def compare_with_shadow(self, decision: Decision) -> None:
        """Compare the two policies on a request that is dispatched as decided, where there is a second policy."""
        shadow = self.shadow
        if shadow is None:
            return
        query, candidates, now = decision.query, decision.candidates, self._clock()
        if decision.by_shadow:
            primary, second = self._rank(self._policy, query, candidates, now), decision.routes
        else:
            primary, second = decision.routes, self._rank_by_shadow(query, candidates, now) or ()
        shadow.compare(query.prompt_tokens, candidates, primary, second)


def _query(
    request: RequestToRank,
    draw: float,
    shared: Sequence[SharedPrefix],
    requests_waiting: int,
    fleet_totals: FleetTotals | None,
) -> RouteQuery:
    """Return the policy's view of the request; the arguments are those of RouteQuery."""
    prompt, asked = request.prompt, request.ctx.request
    return RouteQuery(
        prompt_tokens=prompt.prompt_tokens,
        output_tokens=request.output_tokens,
        sequence=request.sequence,
        draw=draw,
        blocks=prompt.hashes,
        block_tokens=prompt.namespace.block_size,
        session=request.session,
        answers=asked.answers,
        answers_prompt="echo" in asked.fields or "prompt_logprobs" in asked.fields,
        shared=shared,
        requests_waiting=requests_waiting,
        fleet=fleet_totals,
    )


def _shared_prefixes(
    match: PrefixMatch, prompt: PromptBlocks, regrets: RememberedRegrets, now: float, waits: bool
) -> list[SharedPrefix]:
    """Return the parts of the prompt that other requests share; `waits`: this request is counted too."""
    found: list[SharedPrefix] = []
    begin = 0
    for part in match.shared:
        if part.requests <= waits:
            break
        tokens, holders = prompt.matched_tokens(part.end), match.holder_count(part.end)
        regret_ms = regrets.ms(prompt.hashes[begin], holders, now)
        computed = match.is_held(part.end)
        found.append(SharedPrefix(tokens, part.requests - waits, holders, regret_ms, computed))
        begin = part.end
    return found


def _takes_shortlist(policy: RoutingPolicy, shadow: ShadowPolicy | None) -> bool:
    """Return whether every policy that ranks may be given a shortlist; see RoutingPolicy."""
    policies = [policy] if shadow is None else [policy, shadow.policy]
    return all(getattr(each, "shortlist", False) for each in policies)
