"""A route and its turn, made to a place: what is counted where, and whom to call."""

from collections.abc import Callable
from typing import Protocol

from gateway.dispatch.pairs import PairPlace, pair
from gateway.dispatch.placement import Bounds, Placed
from gateway.dispatch.provider_quota import Allowances
from gateway.domain.context import RequestContext
from gateway.domain.prompt_blocks import PromptBlocks
from gateway.fleet.fleet import Fleet
from gateway.fleet.loads import Place
from gateway.fleet.ranks import Ranks
from gateway.models.model_selection import session_key
from gateway.queueing.shared.local_placements import Placed as SharedPlaced
from gateway.queueing.shared.shared_queue import SharedQueue
from gateway.queueing.shared.store import SharedTicket
from gateway.queueing.waiting_room import WaitingRoom
from gateway.routing.router import Router
from policies.queueing.protocol import Ticket
from policies.routing.protocol import Ranking, Route
from radix_cache.match import WorkerId


class Parts(Protocol):
    """What a turn is made of; see Reservations."""

    fleet: Fleet
    router: Router
    queue: SharedQueue
    bounds: Bounds
    ranks: Ranks
    allowances: Allowances
    clock: Callable[[], float]

    def room(self, queue: str) -> WaitingRoom[Placed]: ...

    def room_made(self) -> None: ...

    def somebody_waits(self, model: str) -> bool: ...

    def preempt(self, routes: Ranking, uncached: Callable[[Route], int]) -> None: ...


def computes_at(route: Route) -> WorkerId:
    """Whose window the prompt takes."""
    return route.prefill_worker or route.worker


def is_there(fleet: Fleet, route: Route) -> bool:
    """Are those that it leads to still of the fleet?"""
    return route.worker in fleet and computes_at(route) in fleet


def seated(
    by: Parts,
    ctx: RequestContext,
    prompt: PromptBlocks,
    route: Route,
    uncached: int,
    shared: SharedTicket,
    ticket: Ticket,
) -> Placed:
    """The place that `route` leads to, entered; so many tokens of the prompt are `uncached` there."""
    worker, computes = by.fleet[route.worker], by.fleet[computes_at(route)]
    ahead = computes.load.all_tokens_queued - computes.load.computed(computes.speed)
    since, tokens_ahead = by.clock(), ahead + uncached
    session = session_key(ctx.request, ctx.tenant)
    rank = by.ranks.enter(computes.id, computes.ranks, prompt, session)
    if computes is worker:
        return Placed(
            worker=worker,
            computes=worker,
            through=worker.adapter,
            route=route,
            tokens_ahead=tokens_ahead,
            since=since,
            place=Place(worker.load, uncached_tokens=uncached, kv_tokens=shared.kv_tokens),
            shared=shared,
            rank=rank,
        )
    answering = by.queue.ticket(ticket, shared.queue, shared.kv_tokens, cost=0.0)
    by.queue.hold(answering, SharedPlaced(worker.id, 0))
    return Placed(
        worker=worker,
        computes=computes,
        through=pair(computes, worker, ctx, rank.number if rank is not None else session),
        route=route,
        tokens_ahead=tokens_ahead,
        since=since,
        place=PairPlace(
            computes.load,
            worker.load,
            uncached_tokens=uncached,
            prompt_tokens=prompt.prompt_tokens,
            kv_tokens=shared.kv_tokens,
        ),
        shared=shared,
        answering=answering,
        rank=rank,
    )
