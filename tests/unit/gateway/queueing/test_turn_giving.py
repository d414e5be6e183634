"""The giving of turns: the order of requests, those that are passed over, and estimates while they wait."""

import asyncio

import pytest

from gateway.domain.errors import ShuttingDown
from gateway.queueing.queued_request import QueuedRequest
from policies.queueing.estimate_ages import AGE_SECONDS
from policies.queueing.protocol import Ticket
from policies.registry import queue_policy
from tests.fakes.clock import FakeClock
from tests.fakes.room_stage import Choosy, Estimated, StubWorker, enter, room_for, run_tasks


@pytest.fixture
def clock():
    return FakeClock()


async def test_waiting_requests_go_in_the_order_in_which_they_came(clock):
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


async def test_a_new_request_does_not_overtake_waiting_ones(clock):
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


async def test_a_request_with_a_worker_of_its_own_lets_others_go_to_the_free_one_and_keeps_its_own(clock):
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


async def test_a_request_with_a_worker_of_its_own_lets_others_of_its_tenant_go_to_the_free_one(clock):
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


async def test_without_passing_over_no_request_goes_before_the_first_one(clock):
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


async def test_no_request_is_looked_at_while_no_worker_has_room_for_the_smallest_one(clock):
    worker, free = StubWorker(9), 0
    looked = []
    worker.place = lambda closed=None, place=worker.place: (
        looked.append(1) or (place(closed) if free else None)
    )
    room = room_for(worker, clock, passed_over_max=8, room_left=lambda closed, tokens: tokens <= free)
    tasks = [asyncio.create_task(enter(room, worker, uncached_tokens=tokens)) for tokens in (500, 300, 800)]
    await run_tasks()
    assert len(looked) == 1, "only the first request, which found no other waiting, was ranked on arrival"
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


async def test_a_request_that_is_smaller_than_all_others_makes_room_worth_a_look(clock):
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
