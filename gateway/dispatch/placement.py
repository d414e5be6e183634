"""A placement: the worker chosen for one request, and what was reserved on it."""

from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from gateway.dispatch.prefill_decode_pairs import PairLoadShare, pair
from gateway.domain.model import Model
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.domain.request_context import RequestContext
from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import LoadShare
from gateway.fleet.ranks import Ranks, RankShare
from gateway.fleet.worker import Worker
from gateway.queueing.shared.queue_messages import SharedTicket
from gateway.queueing.shared.shared_turns import SharedTurns
from gateway.quotas.prices import Prices
from gateway.quotas.quota_store import Lease
from policies.routing.protocol import Route
from radix_cache.match import PrefixMatch, WorkerId
from workers.adapter import WorkerAnswer, WorkerCall
from workers.adapters.disaggregation import DisaggregatedCall


class CallTarget(Protocol):
    """What a request is sent to: a worker's adapter, or a prefill/decode pair of workers."""

    def stream(self, call: WorkerCall) -> AbstractAsyncContextManager[WorkerAnswer]:
        """Send the call; see WorkerAdapter.stream."""
        ...


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker chosen for one request, and what was reserved on it."""

    route: Route
    """The routing decision, with its reason and the prompt tokens that it expects to be cached."""
    worker: Worker
    """The worker that answers."""
    prefill_worker: Worker
    """The worker that computes the prompt; the same one unless the request is split between a pair."""
    call_target: CallTarget
    load_share: LoadShare
    ticket: SharedTicket
    """Names the placement in the queue of all gateways, and has its share of the worker's load."""
    decode_ticket: SharedTicket | None = None
    """Of a pair, the name of what is reserved on the decode worker."""
    rank: RankShare | None = None
    """The data-parallel rank that computes the prompt, where the prefill worker has several."""
    provider_lease: Lease | None = None
    """What is reserved of the limits of an outside provider."""
    match: PrefixMatch | None = None
    """The index's match of the prompt when the route was ranked; None at a provider."""
    tokens_ahead: int
    """Uncached prompt tokens to compute until the first token: those already queued, and its own."""
    placed_at: float
    """Seconds on the monotonic clock."""

    @property
    def at_provider(self) -> bool:
        """Whether the request went to an outside provider."""
        return self.worker.provider is not None

    @property
    def holders(self) -> tuple[WorkerId, ...]:
        """The workers that hold the prompt's KV in a prefix cache once it is computed."""
        if self.prefill_worker is self.worker:
            return (self.worker.id,)
        traits = self.worker.disaggregation
        keeps = traits is not None and traits.serves_alone
        return (self.prefill_worker.id, self.worker.id) if keeps else (self.prefill_worker.id,)

    def prices(self, model: Model) -> Prices | None:
        """Return the prices that the tenant pays for this worker's answer; None where the model costs nothing."""
        provider = self.worker.provider
        return provider.prices_of(model) if provider is not None else model.prices

    def usage_of_pair(self, usage: TokenUsage | None) -> TokenUsage | None:
        """Return the usage that the worker reports; of a pair, without the tokens that were handed over to it."""
        if (
            usage is None
            or self.prefill_worker is self.worker
            or not isinstance(self.call_target, DisaggregatedCall)
        ):
            return usage
        details = PromptDetails(self.call_target.cached(usage.cached_tokens))
        return msgspec.structs.replace(usage, prompt_tokens_details=details)


class RequestToPlace(Protocol):
    """The fields of a request that a placement needs; PendingRequest has them."""

    ctx: RequestContext
    prompt: PromptBlocks
    session: int | None


class Placements:
    """Makes placements, and ends them: reserves and frees load on workers, ranks and in the shared queue."""

    def __init__(self, fleet: Fleet, queue: SharedTurns, ranks: Ranks) -> None:
        self._fleet = fleet
        self._queue = queue
        self._ranks = ranks
        self._open: dict[str, str] = {}
        """The model of each request on our own workers, by its ticket's id."""

    def place(
        self,
        request: RequestToPlace,
        route: Route,
        *,
        uncached_tokens: int,
        ticket: SharedTicket,
        now: float,
        match: PrefixMatch | None,
        provider_lease: Lease | None = None,
    ) -> Placement:
        """Reserve what the request takes on the route's workers.

        `uncached_tokens`: tokens of its prompt that are computed there. `now`: seconds on the monotonic clock.
        """
        prompt, session = request.prompt, request.session
        worker = prefill_worker = self._fleet[route.worker]
        if route.prefill_worker is not None:
            prefill_worker = self._fleet[route.prefill_worker]
        load = prefill_worker.load
        tokens_ahead = uncached_tokens
        if queued := load.tokens_queued + load.others.tokens_queued:
            tokens_ahead += queued - load.computed(prefill_worker.learnt.speed)
        if worker.provider is None:
            self._open[ticket.id] = request.ctx.model.name
        rank = None
        if prefill_worker.report.ranks > 1:
            rank = self._ranks.choose(prefill_worker.id, prefill_worker.ranks, prompt, session)
        call_target: CallTarget = worker.adapter
        decode_ticket, share = None, None
        if prefill_worker is not worker:
            decode_ticket = self._queue.second_ticket(ticket)
            self._queue.note_placed(decode_ticket, worker.id, 0)
            call_target = pair(
                prefill_worker, worker, request.ctx, rank.number if rank is not None else session
            )
            share = PairLoadShare(
                load,
                worker.load,
                uncached_tokens=uncached_tokens,
                prompt_tokens=prompt.prompt_tokens,
                kv_tokens=ticket.kv_tokens,
            )
        return Placement(
            route=route,
            worker=worker,
            prefill_worker=prefill_worker,
            call_target=call_target,
            load_share=share or LoadShare(load, uncached_tokens=uncached_tokens, kv_tokens=ticket.kv_tokens),
            ticket=ticket,
            decode_ticket=decode_ticket,
            rank=rank,
            match=match,
            provider_lease=provider_lease,
            tokens_ahead=tokens_ahead,
            placed_at=now,
        )

    def note_first_token(self, placement: Placement) -> None:
        """Free the prompt's share of the worker's prefill queue: the prompt is computed."""
        placement.load_share.note_first_token()
        if placement.rank is not None:
            placement.rank.note_first_token()
        self._queue.note_first_token(placement.ticket)

    def end(self, placement: Placement, cost_change: float) -> bool:
        """Free everything that was reserved; see SharedQueue.leave for the result."""
        self._open.pop(placement.ticket.id, None)
        placement.load_share.end()
        if placement.rank is not None:
            placement.rank.end()
        known_elsewhere = self._queue.leave(placement.ticket, cost_change)
        if placement.decode_ticket is not None:
            self._queue.leave(placement.decode_ticket, 0.0)
        return known_elsewhere

    def counts(self) -> "Counter[str]":
        """Return how many requests are on our own workers, by model; one on a pair of workers counts once."""
        return Counter(self._open.values())

    def give_back(self, placement: Placement) -> None:
        """Free a placement that was given in the moment in which its request left."""
        self.end(placement, 0.0)


def prefill_worker_of(route: Route) -> WorkerId:
    """Return the worker that prefills the prompt on this route; the prompt takes room in its window."""
    return route.prefill_worker or route.worker


def in_fleet(fleet: Fleet, route: Route) -> bool:
    """Return whether the workers of the route are still in the fleet."""
    return route.worker in fleet and prefill_worker_of(route) in fleet
