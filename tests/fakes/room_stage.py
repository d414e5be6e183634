"""A waiting room for tests, with the workers whose places its requests wait for."""

import asyncio

from gateway.domain.errors import NoWorker
from gateway.queueing.queued_request import QueuedRequest, with_estimate
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.waiting_room import WaitingRoom
from policies.admission.waiting_bounds import WaitingRoomBounds
from policies.registry import queue_policy, tenant_order


class StubWorker:
    """So many places; a place is a number, None when all are taken."""

    def __init__(self, places):
        self.free = places
        self.given = []
        self.gone = False

    def place(self, closed=None):
        if self.gone:
            raise NoWorker("m")
        if not self.free:
            return None
        self.free -= 1
        self.given.append(len(self.given))
        return self.given[-1]

    def give_back(self, place):
        self.free += 1


def room_for(
    worker,
    clock,
    *,
    waiting_max=10,
    seconds=30.0,
    policy=None,
    first=lambda: True,
    passed_over_max=0,
    passed_over_of_flow_max=4,
    room_left=lambda closed, tokens: True,
    **bounds,
):
    return WaitingRoom(
        "m",
        rules=RoomRules(
            policy=policy or queue_policy("fifo"),
            order=tenant_order("hrrn"),
            bounds=WaitingRoomBounds(requests_max=waiting_max, **{"tokens_max": 10**9, **bounds}),
            waiting_seconds_max=seconds,
            passed_over_max=passed_over_max,
            passed_over_of_flow_max=passed_over_of_flow_max,
        ),
        give_back=worker.give_back,
        clock=clock,
        may_give_turns=first,
        has_room=room_left,
    )


async def enter(room, worker, tenant="a", **more):
    ticket = room.ticket(QueuedRequest(tenant=tenant, **{"cost": 1.0, **more}))
    placed = room.at_once(ticket, worker.place)
    return placed if placed is not None else await room.wait(ticket, worker.place)


async def run_tasks():
    for _ in range(5):
        await asyncio.sleep(0)


class Choosy:
    """Workers with room for one request each; a request may wait for one certain worker."""

    def __init__(self, *free):
        self.free = set(free)

    def place_at(self, *workers):
        def place(closed=None):
            for worker in workers:
                if worker in self.free and worker not in (closed or ()):
                    self.free.discard(worker)
                    return worker
            if closed is not None:
                closed.update(workers)
            return None

        return place

    def give_back(self, worker):
        self.free.add(worker)


class Estimated:
    """A request whose prefix other requests may compute while it waits."""

    def __init__(self, room, tokens):
        self.asked = QueuedRequest(tenant="a", cost=float(tokens), uncached_tokens=tokens)
        self.ticket = room.ticket(self.asked)

    def holds_all_but(self, tokens):
        self.asked = replace_tokens(self.asked, tokens)

    def estimate(self):
        if self.asked.uncached_tokens != self.ticket.uncached_tokens:
            self.ticket = with_estimate(self.ticket, self.asked)
        return self.ticket


def replace_tokens(asked, tokens):
    cached = asked.uncached_tokens + asked.cached_tokens - tokens
    return QueuedRequest(tenant="a", cost=float(tokens), uncached_tokens=tokens, cached_tokens=cached)
