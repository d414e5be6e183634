"""The shared queue in Redis: the functions in lua/, with values. Each raises RedisDown.

Calls leave in the order in which they are made. A caller may wait for the answer or not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any, Protocol

import msgspec

from gateway.fleet.loads import Loads
from gateway.queueing.shared.keys import QueueKeys, model_of
from policies.admission.dispatch_window import DispatchWindow
from policies.cell_turns import UNBOUNDED, QueueProgress, TurnBounds
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId
from radix_cache.redis.call import CommandArgument, read_lua
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller

FILES = (
    *(
        "call",
        "records",
        "loads",
        "routes",
        "dispatch_windows",
        "best_route",
        "tenants",
        "passed_over_requests",
        "turns",
    ),
    *("progress", "admit", "claim", "gateways", "cells"),
)
VERBS = ("admit", "spare", "claim", "progress", "expire", "beat", "cells", "reap", "join")
LIBRARY = library_functions(
    read_lua("gateway.queueing.shared", *FILES),
    VERBS,
    # What these free is needed by others, also when the server is full.
    when_full=("progress", "expire", "reap"),
)

NOT_JOINED = -2
"""The outcome of a call by a gateway that Redis does not know."""

ROUTES_MAX = 32
PLACES_PER_CALL_MAX = 256


NO_WINDOW = DispatchWindow(narrow=1, wide=1)
"""For calls that name no queue."""


class NotJoined(Exception):
    """Redis does not know this gateway, or knows it no longer: the gateway has to join."""


class SharedRoute(msgspec.Struct, frozen=True, gc=False):
    """A worker that may serve a request, what it would have to compute, and the cost of waiting for it.

    The cost in ms is `fixed_ms`, and `ms_per_token` for every token that is queued there when the turn is given, as
    tokens_counted of policies/latency_model.py counts them.
    """

    worker: WorkerId
    uncached_tokens: int
    fixed_ms: float
    ms_per_token: float = 0.0
    queued_tokens: int = 0
    """What this gateway knows to be queued there. Where several shards use the worker, it counts as its queue."""
    slots: int = 0
    """Requests that the worker runs at a time; 0: not known."""
    computed_tokens: int = 0
    """Of the queued tokens, those that `fixed_ms` takes off as computed."""


class SharedTicket(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that asks for its turn."""

    id: str
    """The gateway's name, a colon, a number."""
    queue: str
    tenant: str
    weight: float
    cost: float
    kv_tokens: int
    target_seconds: float = 0.0
    """The TTFT target of its class."""
    work_share: float = 0.0
    """As of policies.queueing.protocol.Ticket."""
    shard: int = 0
    """The number of the shard that decides on it; see queue_shards.py."""


class SharedPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A ticket that has a place on a worker."""

    ticket: SharedTicket
    worker: WorkerId
    uncached_tokens: int
    """Tokens in the worker's prefill queue; 0 once the first token has come."""


class QueueReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a call. Fields that the function does not return have their defaults."""

    outcome: int
    """As the function says."""
    due_seconds: float | None
    """Seconds until it has to be checked whether a turn was claimed; None: never."""
    gateways: int
    """How many gateways are alive."""
    loads: Loads = {}
    id: str = ""
    worker: WorkerId | None = None
    uncached_tokens: int = 0
    virtual_time: float = 0.0
    finish: float = 0.0
    """The finish tag of the ticket's tenant."""
    dead: tuple[str, ...] = ()
    """Gateways whose lease is over."""


class CellState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What this cell has under way, for other cells."""

    loads: Loads = {}
    progress: Mapping[str, QueueProgress] = {}
    """By queue."""


class QueueWindows(Protocol):
    """The windows that all gateways together may fill; see gateway/queueing/dispatch_windows.py."""

    def of(self, model: str) -> DispatchWindow:
        """Return the window of the workers of a model."""
        ...


class QueueStore:
    """Calls the functions of the shared queue for one gateway."""

    def __init__(
        self,
        scripts: ScriptCaller,
        keys: QueueKeys,
        gateway: str,
        windows: QueueWindows,
        hold: float | None = None,
        is_divided: Callable[[str], bool] | None = None,
    ) -> None:
        """Call the functions with these keys.

        Args:
            scripts: Calls them.
            keys: The keys of the queue, or of one of its shards.
            gateway: Sixteen hex digits that no other has.
            windows: The windows of all workers.
            hold: The setting `queueing.hold`.
            is_divided: Whether the tenants of a queue are divided among several shards; None: of no queue.
        """
        self.gateway = gateway
        self.keys = keys
        scripts.bind(LIBRARY)
        self._scripts = scripts
        self._windows = windows
        self.hold = hold
        self._is_divided = is_divided

    async def admit(
        self, ticket: SharedTicket, routes: Sequence[SharedRoute], before: Sequence[str] = ()
    ) -> QueueReply:
        """Ask for a turn; outcome 1: placed at `worker`; 0: it waits; -1: it has ended.

        `before`: the queues that go before its own.
        """
        answer = await self._call("admit", [ticket.queue, *before], [*_fields(ticket), *_flat(routes)])
        reply = _reply(answer)
        if reply.outcome < 0:
            return reply
        worker, tokens, loads, virtual_time, finish = answer[3:]
        return msgspec.structs.replace(
            reply,
            worker=WorkerId(worker.decode()) if worker else None,
            uncached_tokens=tokens,
            loads=_loads(loads),
            virtual_time=float(virtual_time),
            finish=float(finish),
        )

    async def spare(
        self, ticket: SharedTicket, queues: Sequence[str], routes: Sequence[SharedRoute]
    ) -> QueueReply:
        """Ask for a place without a turn; outcome 1: placed at `worker`; 0: not placed.

        It is placed only if no request waits in these queues, batch work apart. The first queue is its own.
        """
        answer = await self._call("spare", queues, [*_fields(ticket), *_flat(routes)])
        reply = _reply(answer)
        if reply.outcome < 0:
            return reply
        worker, tokens, loads = answer[3:]
        return msgspec.structs.replace(
            reply,
            worker=WorkerId(worker.decode()) if worker else None,
            uncached_tokens=tokens,
            loads=_loads(loads),
        )

    async def claim(
        self, queues: Sequence[str], id: str, other: str | None, routes: Sequence[SharedRoute]
    ) -> QueueReply:
        """Take a turn, for the ticket `other` if that has room; outcome 1: `id` goes to `worker`; -1: too late."""
        answer = await self._call("claim", queues, [id, other or "", *_flat(routes)])
        reply = _reply(answer)
        if reply.outcome < 0:
            return reply
        placed, worker, tokens, loads = answer[3:]
        return msgspec.structs.replace(
            reply,
            id=placed.decode(),
            worker=WorkerId(worker.decode()),
            uncached_tokens=tokens,
            loads=_loads(loads),
        )

    async def first_token(self, queues: Sequence[str], id: str) -> QueueReply:
        """Report that a request's first token has come."""
        return await self._progress(queues, id, "first", 0.0)

    async def end(self, queues: Sequence[str], id: str, cost_change: float) -> QueueReply:
        """Report that a request has ended, in any state.

        The first queue is its own; requests of the others may get what it frees.
        """
        return await self._progress(queues, id, "end", cost_change)

    async def expire(self, queues: Sequence[str], *, ahead_ms: int = 0) -> QueueReply:
        """Give turns that were not claimed to the next requests."""
        return _reply(await self._call("expire", queues, [ahead_ms]))

    async def beat(self, queues: Sequence[str], lease_ms: int) -> QueueReply:
        """Renew this gateway's lease, and return `dead` and `loads`. A lease of 0: the gateway leaves."""
        answer = await self._call("beat", queues, [lease_ms])
        dead = tuple(name.decode() for name in answer[3])
        return msgspec.structs.replace(_reply(answer), dead=dead, loads=_loads(answer[4]))

    async def cells(
        self,
        queues: Sequence[str],
        others: Loads | None,
        bounds: Mapping[str, TurnBounds],
        lease_ms: int,
    ) -> tuple[QueueReply, CellState]:
        """Report what other cells and shards have on workers, and return the state of this one.

        `others`: None to report nothing. `bounds`: of turns, by queue, as follow from the others' progress; they
        hold for `lease_ms`.
        """
        given: list[CommandArgument] = [-1]
        if others is not None:
            given = [len(others)]
            for worker, load in others.items():
                given += [worker, load.tokens_queued, load.streams, load.kv_tokens]
            given.append(lease_ms)
            for queue in queues:
                of_queue = bounds.get(queue, UNBOUNDED)
                given += [of_queue.lift, "" if of_queue.start_max == inf else of_queue.start_max]
        answer = await self._call("cells", queues, given)
        flat = [float(number) for number in answer[4]]
        progress = {queue: QueueProgress(*flat[2 * at : 2 * at + 2]) for at, queue in enumerate(queues)}
        return _reply(answer), CellState(loads=_loads(answer[3]), progress=progress)

    async def reap(self, queues: Sequence[str], gateway: str, *, ahead_ms: int = 0) -> QueueReply:
        """Free what a gateway holds whose lease is over; outcome 0: it is alive."""
        return _reply(await self._call("reap", queues, [gateway, ahead_ms]))

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
        """Report all that this gateway holds. The calls are made before this returns.

        `services`: (queue, tenant, units over weight) given while Redis was away; counted once for every `id`.
        Without `fresh`, these places are added to what the gateway holds already.
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
        return asyncio.gather(*(_join_reply(call) for call in calls))

    async def _progress(self, queues: Sequence[str], id: str, what: str, change: float) -> QueueReply:
        answer = await self._call("progress", queues, [id, what, change], urgent=False)
        return msgspec.structs.replace(_reply(answer), loads=_loads(answer[3]))

    async def _call(
        self,
        verb: str,
        queues: Sequence[str],
        arguments: Sequence[CommandArgument],
        *,
        urgent: bool = True,
    ) -> Any:
        answer = await self._begin(verb, queues, arguments, urgent=urgent)
        if answer[0] == NOT_JOINED:
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
        """Make a call; it has its place in the order of calls when this returns."""
        hold = "" if self.hold is None else self.hold
        window = self._windows.of(model_of(queues[0])) if queues else NO_WINDOW
        left_open = "" if window.open is None else window.open
        flags = 1 if window.contended else 0
        if self._is_divided is not None and any(map(self._is_divided, queues)):
            flags += 2
        head: list[CommandArgument] = [self.gateway, window.narrow, window.wide, left_open, flags]
        head += [int(window.counts_own), hold, _filled(window), window.passed_over_max, len(queues), *queues]
        return self._scripts.call(LIBRARY[verb], self.keys.of(queues), [*head, *arguments], urgent=urgent)


async def _join_reply(call: Awaitable[Any]) -> QueueReply:
    return _reply(await call)


def _reply(answer: Any) -> QueueReply:
    outcome, due_ms, gateways = answer[:3]
    return QueueReply(outcome=outcome, due_seconds=due_ms / 1000 if due_ms >= 0 else None, gateways=gateways)


def _loads(flat: Sequence[Any]) -> Loads:
    return {WorkerId(flat[at].decode()): LoadTotals(*flat[at + 1 : at + 4]) for at in range(0, len(flat), 4)}


def _filled(window: DispatchWindow) -> str:
    filled = window.filled
    if filled is None:
        return ""
    open_tokens = "" if filled.open_tokens is None else filled.open_tokens
    return f"{filled.tokens} {filled.patient_seconds!r} {open_tokens} {filled.last_open}"


def _fields(ticket: SharedTicket) -> tuple[CommandArgument, ...]:
    asked = (ticket.id, ticket.tenant, ticket.weight, ticket.cost, ticket.kv_tokens)
    return (*asked, ticket.target_seconds, ticket.work_share)


def _place(place: SharedPlacement) -> tuple[CommandArgument, ...]:
    ticket = place.ticket
    return (
        *(ticket.id, ticket.queue, ticket.tenant, ticket.weight, ticket.cost, ticket.kv_tokens),
        *(place.worker, place.uncached_tokens),
    )


def _flat(routes: Sequence[SharedRoute]) -> list[CommandArgument]:
    """Return routes as the script reads them: how many, and their fields one after another."""
    flat: list[CommandArgument] = [len(routes)]
    for route in routes:
        flat += [route.worker, route.uncached_tokens, route.fixed_ms, route.ms_per_token, route.slots]
        flat += [route.computed_tokens, route.queued_tokens]
    return flat
