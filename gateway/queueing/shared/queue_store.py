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
from gateway.queueing.shared.queue_messages import (
    CellState,
    QueueReply,
    SharedPlacement,
    SharedRoute,
    SharedTicket,
    TenantCharge,
    loads_of,
    placement_fields,
    reply_of,
    route_fields,
    ticket_fields,
)
from policies.admission.dispatch_window import DispatchWindow
from policies.cell_turns import UNBOUNDED, QueueProgress, TurnBounds
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
        "removal",
    ),
    *("progress", "admit", "claim", "own_places", "gateways", "cells"),
)
VERBS = ("admit", "spare", "claim", "progress", "report", "expire", "beat", "cells", "reap", "join")
LIBRARY = library_functions(
    read_lua("gateway.queueing.shared", *FILES),
    VERBS,
    # What these free is needed by others, also when the server is full.
    when_full=("progress", "report", "expire", "reap"),
)

NOT_JOINED = -2
"""The outcome of a call by a gateway that is no member in Redis."""

ROUTES_MAX = 32
PLACES_PER_CALL_MAX = 256


NO_WINDOW = DispatchWindow(narrow=1, wide=1)
"""For calls that name no queue."""


class NotJoined(Exception):
    """This gateway is no member in Redis, or no longer: it has to join."""


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
        """Request a turn; outcome 1: placed at `worker`; 0: it waits; -1: it has ended. `waiting`: in its queue.

        `before`: the queues that go before its own.
        """
        answer = await self._call(
            "admit", [ticket.queue, *before], [*ticket_fields(ticket), *route_fields(routes)]
        )
        reply = reply_of(answer)
        if reply.outcome < 0:
            return reply
        worker, tokens, loads, virtual_time, finish, waiting = answer[3:]
        return msgspec.structs.replace(
            reply,
            worker=WorkerId(worker.decode()) if worker else None,
            uncached_tokens=tokens,
            loads=loads_of(loads),
            virtual_time=float(virtual_time),
            finish=float(finish),
            waiting=(waiting,),
        )

    async def spare(
        self, ticket: SharedTicket, queues: Sequence[str], routes: Sequence[SharedRoute]
    ) -> QueueReply:
        """Request a place without a turn; outcome 1: placed at `worker`; 0: not placed.

        It is placed only if no request waits in these queues, batch work apart. The first queue is its own.
        """
        answer = await self._call("spare", queues, [*ticket_fields(ticket), *route_fields(routes)])
        reply = reply_of(answer)
        if reply.outcome < 0:
            return reply
        worker, tokens, loads = answer[3:]
        return msgspec.structs.replace(
            reply,
            worker=WorkerId(worker.decode()) if worker else None,
            uncached_tokens=tokens,
            loads=loads_of(loads),
        )

    async def claim(
        self, queues: Sequence[str], id: str, other: str | None, routes: Sequence[SharedRoute]
    ) -> QueueReply:
        """Take a turn, for the ticket `other` if that has room; outcome 1: `id` goes to `worker`; -1: too late."""
        answer = await self._call("claim", queues, [id, other or "", *route_fields(routes)])
        reply = reply_of(answer)
        if reply.outcome < 0:
            return reply
        placed, worker, tokens, loads = answer[3:]
        return msgspec.structs.replace(
            reply,
            id=placed.decode(),
            worker=WorkerId(worker.decode()),
            uncached_tokens=tokens,
            loads=loads_of(loads),
        )

    async def first_token(self, queues: Sequence[str], id: str, *, urgent: bool) -> QueueReply:
        """Report that a request's first token has come; `urgent`: at once, since others wait for its room."""
        return await self._progress(queues, id, "first", 0.0, urgent=urgent)

    async def end(self, queues: Sequence[str], id: str, cost_change: float) -> QueueReply:
        """Report that a request has ended, in any state.

        The first queue is its own; requests of the others may get what it frees.
        """
        return await self._progress(queues, id, "end", cost_change)

    def report(
        self,
        queues: Sequence[str],
        id: str,
        sums: Loads,
        charges: Sequence[TenantCharge],
        *,
        urgent: bool = False,
    ) -> "asyncio.Future[QueueReply]":
        """Report places that this gateway gave by itself. The call is made before this returns.

        `sums`: of these places, by worker, where they have changed. `charges`: of tenants in these queues; charged
        once for every `id`. The reply has `waiting` and `tags`.
        """
        given: list[CommandArgument] = [id, len(sums)]
        for worker, load in sums.items():
            given += [worker, load.tokens_queued, load.streams, load.kv_tokens]
        given.append(len(charges))
        for charge in charges:
            given += [charge.queue, charge.tenant, charge.cost, charge.change]
        return asyncio.ensure_future(_report_reply(self._begin("report", queues, given, urgent=urgent)))

    async def expire(self, queues: Sequence[str], *, ahead_ms: int = 0) -> QueueReply:
        """Give turns that were not claimed to the next requests."""
        return reply_of(await self._call("expire", queues, [ahead_ms]))

    async def beat(self, queues: Sequence[str], lease_ms: int) -> QueueReply:
        """Renew this gateway's lease, and return `dead` and `loads`. A lease of 0: the gateway leaves."""
        answer = await self._call("beat", queues, [lease_ms])
        dead = tuple(name.decode() for name in answer[3])
        return msgspec.structs.replace(reply_of(answer), dead=dead, loads=loads_of(answer[4]))

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
        return reply_of(answer), CellState(loads=loads_of(answer[3]), progress=progress)

    async def reap(self, queues: Sequence[str], gateway: str, *, ahead_ms: int = 0) -> QueueReply:
        """Free what a gateway holds whose lease is over; outcome 0: it is alive."""
        return reply_of(await self._call("reap", queues, [gateway, ahead_ms]))

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
                        *chain.from_iterable(map(placement_fields, part)),
                        *((len(given) // 3, *given) if at == 0 else (0,)),
                    ],
                )
            )
        return asyncio.gather(*(_join_reply(call) for call in calls))

    async def _progress(
        self, queues: Sequence[str], id: str, what: str, change: float, *, urgent: bool = False
    ) -> QueueReply:
        answer = await self._call("progress", queues, [id, what, change], urgent=urgent)
        return msgspec.structs.replace(reply_of(answer), loads=loads_of(answer[3]))

    def is_divided(self, queue: str) -> bool:
        """Return whether the tenants of a queue are divided among several shards."""
        return self._is_divided is not None and self._is_divided(queue)

    async def _call(
        self,
        verb: str,
        queues: Sequence[str],
        arguments: Sequence[CommandArgument],
        *,
        urgent: bool = True,
    ) -> Any:
        return _known(await self._begin(verb, queues, arguments, urgent=urgent))

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
        if any(map(self.is_divided, queues)):
            flags += 2
        head: list[CommandArgument] = [self.gateway, window.narrow, window.wide, left_open, flags]
        head += [int(window.counts_own), hold, _filled(window), window.passed_over_max, len(queues), *queues]
        return self._scripts.call(LIBRARY[verb], self.keys.of(queues), [*head, *arguments], urgent=urgent)


def _known(answer: Any) -> Any:
    """Return the answer to a call of a gateway that has joined. Raises NotJoined."""
    if answer[0] == NOT_JOINED:
        raise NotJoined
    return answer


async def _report_reply(call: Awaitable[Any]) -> QueueReply:
    answer = _known(await call)
    loads, waiting, tags = answer[3:]
    numbers = [float(tag) for tag in tags]
    return msgspec.structs.replace(
        reply_of(answer),
        loads=loads_of(loads),
        waiting=tuple(waiting),
        tags=tuple(zip(numbers[::2], numbers[1::2], strict=True)),
    )


async def _join_reply(call: Awaitable[Any]) -> QueueReply:
    return reply_of(await call)


def _filled(window: DispatchWindow) -> str:
    filled = window.filled
    if filled is None:
        return ""
    open_tokens = "" if filled.open_tokens is None else filled.open_tokens
    return f"{filled.tokens} {filled.patient_seconds!r} {open_tokens} {filled.last_open}"
