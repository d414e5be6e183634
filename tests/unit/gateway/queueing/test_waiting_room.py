"""The waiting room: order, bounds, leaving; on a fake clock where time matters."""

import asyncio
from dataclasses import replace

import pytest

from gateway.domain.errors import AdmissionTimeout, NoWorker, Overloaded, ShuttingDown, TenantQueueFull
from gateway.queueing.queued_request import QueuedRequest, with_estimate
from gateway.queueing.room_rules import RoomRules
from gateway.queueing.shared.turn_requests import AskAnew
from gateway.queueing.waiting_room import WaitingRoom
from policies.admission.waiting_bounds import NONE_WAITING, WaitingRoomBounds, WaitingTotals
from policies.queueing.estimate_ages import AGE_SECONDS
from policies.queueing.protocol import Ticket
from policies.registry import queue_policy, tenant_order
from tests.fakes.clock import FakeClock


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


@pytest.fixture
def clock():
    return FakeClock()


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


async def test_who_finds_a_seat_does_not_wait(clock):
    worker = StubWorker(2)
    room = room_for(worker, clock)
    assert [await enter(room, worker), await enter(room, worker)] == [0, 1]
    assert len(room) == 0


async def test_those_who_wait_go_in_the_order_in_which_they_came(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    order = []

    async def visitor(name):
        await enter(room, worker, name)
        order.append(name)

    tasks = [asyncio.create_task(visitor(name)) for name in "abc"]
    await run_tasks()
    assert len(room) == 3
    for _ in range(3):
        worker.free += 1
        room.give_turns()
        await run_tasks()
    assert order == ["a", "b", "c"]
    await asyncio.gather(*tasks)


async def test_tenants_share_by_weight_and_what_was_used(clock):
    worker, policy = StubWorker(0), queue_policy("sfq")
    room = room_for(worker, clock, policy=policy, waiting_max=100)
    order = []

    async def visitor(name, **more):
        await enter(room, worker, name, **more)
        order.append(name)

    tasks = [
        asyncio.create_task(visitor(name, weight=weight, cost=10.0))
        for name, weight in [("a", 1.0)] * 12 + [("b", 2.0)] * 12
    ]
    await run_tasks()
    for _ in range(9):
        worker.free += 1
        room.give_turns()
        await run_tasks()
    assert (order.count("a"), order.count("b")) == (3, 6)
    room.correct(Ticket(number=0, tenant="b", cost=10.0, weight=2.0, arrived_at=0.0), 80.0)
    for _ in range(4):
        worker.free += 1
        room.give_turns()
        await run_tasks()
    assert order[9:] == ["a"] * 4
    for task in tasks:
        task.cancel()


async def test_inside_a_tenant_short_prompts_go_first(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock, policy=queue_policy("sfq"))
    order = []

    async def visitor(tokens):
        await enter(room, worker, uncached_tokens=tokens)
        order.append(tokens)

    tasks = [asyncio.create_task(visitor(tokens)) for tokens in (5000, 100, 300)]
    await run_tasks()
    clock.advance(1.0)
    for _ in range(3):
        worker.free += 1
        room.give_turns()
        await run_tasks()
    assert order == [100, 300, 5000]
    await asyncio.gather(*tasks)


async def test_nobody_overtakes_those_who_wait(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    first = asyncio.create_task(enter(room, worker))
    await run_tasks()
    worker.free += 1
    second = asyncio.create_task(enter(room, worker))
    await run_tasks()
    assert not second.done()
    room.give_turns()
    await run_tasks()
    assert first.done()
    assert not second.done()
    second.cancel()


async def test_who_leaves_is_forgotten_and_the_next_one_goes(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    first, second = (asyncio.create_task(enter(room, worker)) for _ in range(2))
    await run_tasks()
    first.cancel()
    await run_tasks()
    worker.free += 1
    room.give_turns()
    await run_tasks()
    assert second.done()
    assert len(room) == 0


async def test_a_seat_given_in_the_moment_of_leaving_is_given_back(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    task = asyncio.create_task(enter(room, worker))
    await run_tasks()
    worker.free += 1
    room.give_turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.free == 1


async def test_a_seat_given_back_goes_to_the_next_who_waits(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    leaving, staying = (asyncio.create_task(enter(room, worker)) for _ in range(2))
    await run_tasks()
    worker.free += 1
    room.give_turns()
    leaving.cancel()
    await run_tasks()
    assert staying.done()


async def test_a_full_room_tells_a_greedy_tenant_that_it_is_its_own_doing(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock, waiting_max=4)
    tasks = [asyncio.create_task(enter(room, worker, tenant)) for tenant in "aaab"]
    await run_tasks()
    with pytest.raises(TenantQueueFull) as greedy:
        await enter(room, worker, "a")
    assert (greedy.value.status, greedy.value.retry_after_seconds) == (429, 1.0)
    with pytest.raises(Overloaded) as modest:
        await enter(room, worker, "b")
    assert modest.value.status == 503
    with pytest.raises(Overloaded):
        await enter(room, worker, "c")
    for task in tasks:
        task.cancel()


async def test_the_time_to_come_back_follows_from_the_rate_of_turns(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock, waiting_max=2)
    for _ in range(4):
        worker.free += 1
        await enter(room, worker)
        clock.advance(5.0)
    tasks = [asyncio.create_task(enter(room, worker, "b")) for _ in range(2)]
    await run_tasks()
    with pytest.raises(TenantQueueFull) as refusal:
        await enter(room, worker, "b")
    assert refusal.value.retry_after_seconds == pytest.approx(10.0)
    for task in tasks:
        task.cancel()


async def test_waiting_has_an_end(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock, seconds=0.02)
    with pytest.raises(AdmissionTimeout) as refusal:
        await enter(room, worker)
    assert (refusal.value.status, refusal.value.code) == (503, "admission_timeout")
    assert len(room) == 0


async def test_when_no_worker_is_left_nobody_waits_for_one(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    waiting = asyncio.create_task(enter(room, worker))
    await run_tasks()
    worker.gone = True
    room.give_turns()
    with pytest.raises(NoWorker):
        await waiting
    with pytest.raises(NoWorker):
        await enter(room, worker)


async def test_a_closed_room_sends_everybody_away(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    waiting = asyncio.create_task(enter(room, worker))
    await run_tasks()
    room.close(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await waiting
    assert len(room) == 0


async def test_a_turn_that_comes_while_its_owner_is_leaving_goes_to_the_next(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    leaving, next_one = (asyncio.create_task(enter(room, worker, name)) for name in "ab")
    await run_tasks()
    leaving.cancel()
    worker.free = 1
    room.give_turns()  # before the cancelled task has run
    assert await next_one == 0
    assert leaving.cancelled()
    assert len(room) == worker.free == 0


async def test_closing_while_somebody_is_leaving_hurts_nobody(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    leaving, staying = (asyncio.create_task(enter(room, worker, name)) for name in "ab")
    await run_tasks()
    leaving.cancel()
    room.close(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await staying
    assert len(room) == 0


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


async def test_who_waits_for_a_worker_of_its_own_lets_others_go_to_the_free_one_and_keeps_its_own(clock):
    worker = Choosy("other")
    room = room_for(worker, clock, policy=queue_policy("sfq"), passed_over_max=4)

    async def visitor(tenant, *workers):
        ticket, place = room.ticket(QueuedRequest(tenant=tenant, cost=1.0)), worker.place_at(*workers)
        placed = room.at_once(ticket, place)
        return placed if placed is not None else await room.wait(ticket, place)

    choosy = asyncio.create_task(visitor("a", "own"))
    await run_tasks()
    assert await visitor("b", "other") == "other"
    later = asyncio.create_task(visitor("c", "own", "other"))
    await run_tasks()
    worker.free.add("own")
    room.give_turns()
    await run_tasks()
    assert choosy.result() == "own"
    assert not later.done()
    worker.free.add("other")
    room.give_turns()
    assert await later == "other"


async def test_who_waits_for_a_worker_of_its_own_lets_others_of_its_tenant_go_to_the_free_one(clock):
    worker = Choosy("other")
    room = room_for(worker, clock, policy=queue_policy("sfq"), passed_over_max=4)
    choosy = asyncio.create_task(
        room.wait(room.ticket(QueuedRequest(tenant="a", cost=1.0)), worker.place_at("own"))
    )
    await run_tasks()
    assert (
        await room.wait(room.ticket(QueuedRequest(tenant="a", cost=1.0)), worker.place_at("other")) == "other"
    )
    assert not choosy.done()
    worker.free.add("own")
    room.give_turns()
    assert await choosy == "own"


async def test_a_tenant_whose_requests_all_wait_for_one_worker_does_not_keep_others_from_a_free_one(clock):
    worker = Choosy("other")
    room = room_for(worker, clock, policy=queue_policy("sfq"), passed_over_max=4, passed_over_of_flow_max=2)
    own = [
        asyncio.create_task(
            room.wait(room.ticket(QueuedRequest(tenant="a", cost=1.0)), worker.place_at("own"))
        )
        for _ in range(8)
    ]
    await run_tasks()
    assert (
        await room.wait(room.ticket(QueuedRequest(tenant="b", cost=1.0)), worker.place_at("other")) == "other"
    )
    assert not any(task.done() for task in own)
    for task in own:
        task.cancel()


async def test_without_that_nobody_goes_before_who_stands_first(clock):
    worker = Choosy("other")
    room = room_for(worker, clock, policy=queue_policy("sfq"))
    tasks = []
    for tenant, name in (("a", "own"), ("b", "other")):
        ticket = room.ticket(QueuedRequest(tenant=tenant, cost=1.0))
        tasks.append(asyncio.create_task(room.wait(ticket, worker.place_at(name))))
    await run_tasks()
    room.give_turns()
    await run_tasks()
    assert [task.done() for task in tasks] == [False, False]
    for task in tasks:
        task.cancel()


async def test_a_room_for_batch_work_gives_nothing_while_others_wait_elsewhere(clock):
    worker, others = StubWorker(1), [1]
    room = room_for(worker, clock, first=lambda: not others)
    batch = asyncio.create_task(enter(room, worker))
    await run_tasks()
    room.give_turns()
    await run_tasks()
    assert not batch.done()
    others.clear()
    room.give_turns()
    assert await batch == 0


async def test_waiting_tokens_are_bounded_and_counted_down(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock, tokens_max=1000)
    tasks = [asyncio.create_task(enter(room, worker, tenant, uncached_tokens=450)) for tenant in "ab"]
    await run_tasks()
    assert room.tokens == 900
    with pytest.raises(Overloaded):
        await enter(room, worker, "c", uncached_tokens=200)
    for task in tasks:
        task.cancel()
    await run_tasks()
    assert (room.tokens, len(room), room.standing_since("chat")) == (0, 0, None)


async def test_under_another_policy_who_waits_asks_anew_and_nobody_has_received_anything(clock):
    worker = StubWorker(1)
    room = room_for(worker, clock, policy=queue_policy("sfq"))
    had_its_turn = room.ticket(QueuedRequest(tenant="a", cost=1.0))
    assert room.at_once(had_its_turn, worker.place) == 0
    ticket = room.ticket(QueuedRequest(tenant="b", cost=1.0))
    waiting = asyncio.ensure_future(room.wait(ticket, worker.place))
    await asyncio.sleep(0)
    room.reconfigure(replace(room.rules, policy=queue_policy("vtc")))
    with pytest.raises(AskAnew):
        await waiting
    # What the first one used is corrected in counters that are gone.
    room.correct(had_its_turn, 1000.0)
    assert room.debts() == {}
    # The one that waited keeps its number, and counts under the new policy.
    again = room.ticket(QueuedRequest(tenant="b", cost=1.0), ticket)
    assert (again.number, again.arrived_at) == (ticket.number, ticket.arrived_at)
    worker.free = 1
    assert room.at_once(again, worker.place) == 1
    room.correct(again, 5.0)
    assert room.debts()["b"] > 0


async def test_bounds_and_patience_hold_for_whoever_comes_after_a_change(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    waiting = asyncio.ensure_future(enter(room, worker))
    await asyncio.sleep(0)
    bounds = WaitingRoomBounds(requests_max=1, tokens_max=10**9)
    room.reconfigure(replace(room.rules, bounds=bounds))
    with pytest.raises(Overloaded):
        await enter(room, worker, "b")
    assert not waiting.done()  # The policy is the same: waiting requests stay.
    worker.free = 1
    room.give_turns()
    assert await waiting == 0


async def test_a_request_that_cannot_be_ranked_fails_alone(clock):
    """A routing policy may come from another package: its failure fails only the request that it ranks."""
    worker, faults = Choosy("other"), []
    room = room_for(worker, clock, policy=queue_policy("sfq"), passed_over_max=4)

    def place(closed):
        if faults:
            raise faults[0]
        return worker.place_at("gone")(closed)

    ranked = asyncio.create_task(
        room.wait(room.ticket(QueuedRequest(tenant="a", cost=1.0)), worker.place_at("own"))
    )
    await run_tasks()
    failing = asyncio.create_task(room.wait(room.ticket(QueuedRequest(tenant="b", cost=1.0)), place))
    await run_tasks()
    faults.append(ZeroDivisionError())
    assert (
        await room.wait(room.ticket(QueuedRequest(tenant="c", cost=1.0)), worker.place_at("other")) == "other"
    )
    with pytest.raises(ZeroDivisionError):
        await failing
    assert not ranked.done()
    worker.free.add("own")
    room.give_turns()
    assert await ranked == "own"
    assert len(room) == room.tokens == 0


async def test_who_comes_in_the_moment_in_which_a_queue_policy_fails_leaves_nothing(clock, monkeypatch):
    worker = Choosy("other")
    room = room_for(worker, clock, policy=queue_policy("sfq"), passed_over_max=4)
    ticket = room.ticket(QueuedRequest(tenant="a", cost=1.0, uncached_tokens=100))
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):
        broken.setattr(room.rules.policy, "next", lambda *_: 1 / 0)
        await room.wait(ticket, worker.place_at("other"))
    assert (len(room), room.tokens, worker.free) == (0, 0, {"other"})
    assert not room.give_turns()


async def test_nobody_is_looked_at_while_no_worker_has_room_for_the_smallest_of_them(clock):
    worker, free = StubWorker(9), 0
    looked = []
    worker.place = lambda closed=None, place=worker.place: (
        looked.append(1) or (place(closed) if free else None)
    )
    room = room_for(worker, clock, passed_over_max=8, room_left=lambda closed, tokens: tokens <= free)
    tasks = [asyncio.create_task(enter(room, worker, uncached_tokens=tokens)) for tokens in (500, 300, 800)]
    await run_tasks()
    assert len(looked) == 1, "the first one, who found nobody here"
    free = 299
    assert not room.give_turns()
    assert len(looked) == 1
    free = 300
    assert room.give_turns(1)
    await run_tasks()
    await_left = len(room)
    free = 499
    assert not room.give_turns(), "the smallest has gone"
    free = 500
    assert room.give_turns(1)
    free = 10**6
    assert room.give_turns()
    await asyncio.gather(*tasks)
    assert (await_left, len(room), len(looked)) == (2, 0, 4)


async def test_one_that_is_smaller_than_all_who_wait_makes_room_worth_a_look(clock):
    worker = StubWorker(0)
    asked = []
    room = room_for(
        worker, clock, passed_over_max=8, room_left=lambda closed, tokens: asked.append(tokens) or False
    )
    tasks = []
    for tokens in (500, 700, 20):
        tasks.append(asyncio.create_task(enter(room, worker, uncached_tokens=tokens)))
        await run_tasks()
    assert asked == [500, 500, 20]
    tasks[2].cancel()
    await run_tasks()
    assert asked[-1] == 500
    room.close(ShuttingDown())
    await asyncio.gather(*tasks, return_exceptions=True)


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


async def test_a_request_whose_prefix_others_have_computed_goes_as_the_short_one_that_it_is_now(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    long, middle = Estimated(room, 5000), Estimated(room, 1000)
    tasks = [
        asyncio.create_task(room.wait(one.ticket, worker.place, None, one.estimate)) for one in (long, middle)
    ]
    await run_tasks()
    long.holds_all_but(10)
    clock.advance(2 * AGE_SECONDS)
    worker.free = 1
    room.give_turns()
    await run_tasks()
    assert [task.done() for task in tasks] == [True, False]
    worker.free = 1
    room.give_turns()
    await asyncio.gather(*tasks)


async def test_waiting_tokens_are_those_of_the_last_estimate_and_none_are_left_in_the_end(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    request = Estimated(room, 5000)
    task = asyncio.create_task(room.wait(request.ticket, worker.place, None, request.estimate))
    await run_tasks()
    assert room.tokens == 5000
    request.holds_all_but(10)
    clock.advance(2 * AGE_SECONDS)
    room.give_turns()
    assert (room.tokens, request.ticket.cost, request.ticket.cached_tokens) == (10, 10.0, 4990)
    worker.free = 1
    room.give_turns()
    await task
    assert (len(room), room.tokens) == (0, 0)


async def test_a_request_that_cannot_be_estimated_fails_alone(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    broken, other = Estimated(room, 5000), Estimated(room, 1000)
    tasks = [
        asyncio.create_task(room.wait(broken.ticket, worker.place, None, lambda: 1 / 0)),
        asyncio.create_task(room.wait(other.ticket, worker.place, None, other.estimate)),
    ]
    await run_tasks()
    clock.advance(2 * AGE_SECONDS)
    worker.free = 1
    room.give_turns()
    with pytest.raises(ZeroDivisionError):
        await tasks[0]
    assert await tasks[1] == 0
    assert room.tokens == 0


async def test_a_later_estimate_of_a_request_that_all_gateways_let_wait_counts_until_it_goes(clock):
    room = room_for(StubWorker(0), clock)
    request, turn = Estimated(room, 5000), asyncio.get_running_loop().create_future()

    async def turn_of_all_gateways():
        return await turn

    task = asyncio.create_task(room.wait_with_all(request.ticket, turn_of_all_gateways))
    await run_tasks()
    request.holds_all_but(10)
    room.update_estimate(request.estimate())
    assert (room.tokens, room.flood_of("a"), room.flood_of("b")) == (10, WaitingTotals(1, 10), NONE_WAITING)
    turn.set_result(0)
    await task
    room.update_estimate(request.ticket)
    assert (len(room), room.tokens) == (0, 0)
