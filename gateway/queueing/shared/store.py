"""The shared queue in Redis, by its verbs: what lua/queue.lua promises, in values. Each raises RedisDown.

Calls go out in the order in which they are made. Whoever calls may wait for the answer or not.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from gateway.fleet.loads import Loads, LoadTotals
from gateway.queueing.shared.keys import QueueKeys
from radix_cache.match import WorkerId
from radix_cache.redis.call import CommandArgument, read_lua
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller

VERBS = ("admit", "spare", "claim", "release", "expire", "beat", "reap", "join")
LIBRARY = library_functions(
    # A verb reads and decides with what others have freed: a server that is full is no reason to hold that back.
    read_lua("gateway.queueing.shared", "queue"),
    VERBS,
    when_full=("release", "expire", "reap"),
)

ROUTES_MAX = 32
PLACES_PER_CALL_MAX = 256


class NotJoined(Exception):
    """Redis does not know this gateway (any more): it has to join."""


class SharedRoute(msgspec.Struct, frozen=True, gc=False):
    """A worker that may serve: what it would have to compute, and what waiting for it costs.

    Cost in ms: `fixed_ms`, and `ms_per_token` for every token that is queued there when the turn is given.
    """

    worker: WorkerId
    uncached_tokens: int
    fixed_ms: float
    ms_per_token: float = 0.0


class SharedTicket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that asks for its turn. `id`: the gateway's, a colon, a number."""

    id: str
    queue: str
    tenant: str
    weight: float
    cost: float
    kv_tokens: int


class SharedPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ticket that has a place. `uncached_tokens`: 0 once its first token has come."""

    ticket: SharedTicket
    worker: WorkerId
    uncached_tokens: int


class QueueReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every answer says. `due_seconds`: until somebody has to look whether a turn was claimed; None: never.

    `outcome`: as the verb says. `gateways`: how many live.
    """

    outcome: int
    due_seconds: float | None
    gateways: int
    loads: Loads = {}
    id: str = ""
    worker: WorkerId | None = None
    uncached_tokens: int = 0
    virtual_time: float = 0.0
    finish: float = 0.0
    dead: tuple[str, ...] = ()


class QueueStore:
    """`gateway`: sixteen hex digits that no other has. `window_tokens`, `hold`: see policies/admission."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        window_tokens: int,
        hold: float | None = None,
    ) -> None:
        self.gateway = gateway
        self.keys = keys
        scripts.bind(LIBRARY)
        self._scripts = scripts
        self.window_tokens = window_tokens
        self.hold = hold

    async def admit(
        self, ticket: SharedTicket, routes: Sequence[SharedRoute], before: Sequence[str] = ()
    ) -> QueueReply:
        """Outcome 1: placed at `worker`; 0: it waits; -1: it has ended. `before`: queues that go before its own."""
        answer = await self._call(
            "admit",
            [ticket.queue, *before],
            [ticket.id, ticket.tenant, ticket.weight, ticket.cost, ticket.kv_tokens, *_routes(routes)],
        )
        told = _told(answer)
        if told.outcome < 0:
            return told
        worker, tokens, loads, virtual_time, finish = answer[3:]
        return msgspec.structs.replace(
            told,
            worker=WorkerId(worker.decode()) if worker else None,
            uncached_tokens=tokens,
            loads=_loads(loads),
            virtual_time=float(virtual_time),
            finish=float(finish),
        )

    async def spare(
        self, ticket: SharedTicket, queues: Sequence[str], routes: Sequence[SharedRoute]
    ) -> QueueReply:
        """Outcome 1: placed at `worker`, where nobody waits in these queues, batch work apart; 0: not. The first
        queue is its own."""
        answer = await self._call(
            "spare",
            queues,
            [ticket.id, ticket.tenant, ticket.weight, ticket.cost, ticket.kv_tokens, *_routes(routes)],
        )
        told = _told(answer)
        if told.outcome < 0:
            return told
        worker, tokens, loads = answer[3:]
        return msgspec.structs.replace(
            told,
            worker=WorkerId(worker.decode()) if worker else None,
            uncached_tokens=tokens,
            loads=_loads(loads),
        )

    async def claim(
        self, queues: Sequence[str], id: str, other: str | None, routes: Sequence[SharedRoute]
    ) -> QueueReply:
        """Takes a turn, for `other` if that has room. Outcome 1: `id` goes to `worker`; -1: too late."""
        answer = await self._call("claim", queues, [id, other or "", *_routes(routes)])
        told = _told(answer)
        if told.outcome < 0:
            return told
        gone, worker, tokens, loads = answer[3:]
        return msgspec.structs.replace(
            told,
            id=gone.decode(),
            worker=WorkerId(worker.decode()),
            uncached_tokens=tokens,
            loads=_loads(loads),
        )

    async def first_token(self, queues: Sequence[str], id: str) -> QueueReply:
        return await self._release(queues, id, "first", 0.0)

    async def end(self, queues: Sequence[str], id: str, cost_change: float) -> QueueReply:
        """Wherever it stands. The first queue is its own, the others may go on with what it frees."""
        return await self._release(queues, id, "end", cost_change)

    async def expire(self, queues: Sequence[str], *, ahead_ms: int = 0) -> QueueReply:
        """Turns that nobody claimed go to the next."""
        return _told(await self._call("expire", queues, [ahead_ms]))

    async def beat(self, queues: Sequence[str], lease_ms: int) -> QueueReply:
        """Lives on; `dead` and `loads` are told. A lease of 0: leaves."""
        answer = await self._call("beat", queues, [lease_ms])
        dead = tuple(name.decode() for name in answer[3])
        return msgspec.structs.replace(_told(answer), dead=dead, loads=_loads(answer[4]))

    async def reap(self, queues: Sequence[str], gateway: str, *, ahead_ms: int = 0) -> QueueReply:
        """A gateway whose lease is over holds nothing any more. Outcome 0: it lives."""
        return _told(await self._call("reap", queues, [gateway, ahead_ms]))

    def join(
        self,
        queues: Sequence[str],
        lease_ms: int,
        id: str,
        places: Sequence[SharedPlacement] = (),
        services: Iterable[tuple[str, str, float]] = (),
        *,
        fresh: bool = True,
    ) -> "asyncio.Future[list[QueueReply]]":
        """What this gateway holds is this and nothing else. All is sent before this returns.

        `services`: (queue, tenant, units over weight) given while Redis was away; counted once for every `id`. Not
        `fresh`: these places are added to what it holds already.
        """
        calls: list[Awaitable[QueueReply]] = []
        given: list[CommandArgument] = list(chain.from_iterable(services))
        for at in range(0, len(places) or 1, PLACES_PER_CALL_MAX):
            part = places[at : at + PLACES_PER_CALL_MAX]
            calls.append(
                self._begin(
                    "join",
                    queues,
                    [
                        lease_ms,
                        f"{id}.{at}",
                        int(fresh and at == 0),
                        len(part),
                        *chain.from_iterable(map(_place, part)),
                        *((len(given) // 3, *given) if at == 0 else (0,)),
                    ],
                )
            )
        return asyncio.gather(*(_heard(call) for call in calls))

    async def _release(self, queues: Sequence[str], id: str, what: str, change: float) -> QueueReply:
        answer = await self._call("release", queues, [id, what, change], urgent=False)
        return msgspec.structs.replace(_told(answer), loads=_loads(answer[3]))

    async def _call(
        self,
        verb: str,
        queues: Sequence[str],
        arguments: Sequence[CommandArgument],
        *,
        urgent: bool = True,
    ) -> Any:
        answer = await self._begin(verb, queues, arguments, urgent=urgent)
        if answer[0] == -2:
            raise NotJoined
        return answer

    def _begin(
        self,
        verb: str,
        queues: Sequence[str],
        arguments: Sequence[CommandArgument],
        *,
        urgent: bool = True,
    ) -> "asyncio.Future[Any]":
        """Sent when this returns."""
        hold = "" if self.hold is None else self.hold
        head: list[CommandArgument] = [self.gateway, self.window_tokens, hold, len(queues), *queues]
        return self._scripts.call(LIBRARY[verb], self.keys.of(queues), [*head, *arguments], urgent=urgent)


async def _heard(call: Awaitable[Any]) -> QueueReply:
    return _told(await call)


def _told(answer: Any) -> QueueReply:
    outcome, due_ms, gateways = answer[:3]
    return QueueReply(outcome=outcome, due_seconds=due_ms / 1000 if due_ms >= 0 else None, gateways=gateways)


def _loads(flat: Sequence[Any]) -> Loads:
    return {WorkerId(flat[at].decode()): LoadTotals(*flat[at + 1 : at + 4]) for at in range(0, len(flat), 4)}


def _routes(routes: Sequence[SharedRoute]) -> list[CommandArgument]:
    flat: list[CommandArgument] = [len(routes)]
    for route in routes:
        flat += [route.worker, route.uncached_tokens, route.fixed_ms, route.ms_per_token]
    return flat


def _place(place: SharedPlacement) -> tuple[CommandArgument, ...]:
    ticket = place.ticket
    return (
        *(ticket.id, ticket.queue, ticket.tenant, ticket.weight, ticket.cost, ticket.kv_tokens),
        *(place.worker, place.uncached_tokens),
    )
