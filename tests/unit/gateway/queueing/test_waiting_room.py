"""The waiting room: bounds, leaving, the end of waiting; on a fake clock where time matters."""

import asyncio
from dataclasses import replace

import pytest

from gateway.domain.errors import AdmissionTimeout, NoWorker, Overloaded, ShuttingDown, TenantQueueFull
from gateway.queueing.queued_request import QueuedRequest
from gateway.queueing.shared.turn_requests import TurnLost
from policies.admission.waiting_bounds import NONE_WAITING, WaitingRoomBounds, WaitingTotals
from policies.queueing.estimate_ages import AGE_SECONDS
from policies.registry import queue_policy
from tests.fakes.clock import FakeClock
from tests.fakes.room_stage import Choosy, Estimated, StubWorker, enter, room_for, run_tasks


@pytest.fixture
def clock():
    return FakeClock()


async def test_a_request_for_which_there_is_room_does_not_wait(clock):
    worker = StubWorker(2)
    room = room_for(worker, clock)
    assert [await enter(room, worker), await enter(room, worker)] == [0, 1]
    assert len(room) == 0


async def test_a_request_that_leaves_is_forgotten_and_the_next_one_goes(clock):
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


async def test_a_placement_given_in_the_moment_of_leaving_is_given_back(clock):
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


async def test_a_placement_given_back_goes_to_the_next_waiting_request(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    leaving, staying = (asyncio.create_task(enter(room, worker)) for _ in range(2))
    await run_tasks()
    worker.free += 1
    room.give_turns()
    leaving.cancel()
    await run_tasks()
    assert staying.done()


async def test_a_full_room_refuses_a_greedy_tenant_by_its_own_bound(clock):
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


async def test_when_no_worker_is_left_no_request_waits_for_one(clock):
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


async def test_a_closed_room_sends_every_request_away(clock):
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


async def test_a_room_may_be_closed_while_a_request_is_leaving(clock):
    worker = StubWorker(0)
    room = room_for(worker, clock)
    leaving, staying = (asyncio.create_task(enter(room, worker, name)) for name in "ab")
    await run_tasks()
    leaving.cancel()
    room.close(ShuttingDown())
    with pytest.raises(ShuttingDown):
        await staying
    assert len(room) == 0


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


async def test_under_another_policy_waiting_requests_enter_again_and_counters_are_empty(clock):
    worker = StubWorker(1)
    room = room_for(worker, clock, policy=queue_policy("sfq"))
    had_its_turn = room.ticket(QueuedRequest(tenant="a", cost=1.0))
    assert room.at_once(had_its_turn, worker.place) == 0
    ticket = room.ticket(QueuedRequest(tenant="b", cost=1.0))
    waiting = asyncio.ensure_future(room.wait(ticket, worker.place))
    await asyncio.sleep(0)
    room.reconfigure(replace(room.rules, policy=queue_policy("vtc")))
    with pytest.raises(TurnLost):
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


async def test_changed_bounds_hold_for_later_requests(clock):
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


async def test_a_request_that_comes_as_a_queue_policy_fails_leaves_nothing(clock, monkeypatch):
    worker = Choosy("other")
    room = room_for(worker, clock, policy=queue_policy("sfq"), passed_over_max=4)
    ticket = room.ticket(QueuedRequest(tenant="a", cost=1.0, uncached_tokens=100))
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):
        broken.setattr(room.rules.policy, "next", lambda *_: 1 / 0)
        await room.wait(ticket, worker.place_at("other"))
    assert (len(room), room.tokens, worker.free) == (0, 0, {"other"})
    assert not room.give_turns()


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
