"""Placements in turns that all gateways give together."""

import pytest

from gateway.domain.errors import NoWorker, TargetMissed
from gateway.queueing.shared.turn_requests import TurnLost
from policies.registry import routing_policy
from policies.service_class import VOICE
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import (
    SPACE,
    DispatchStage,
    prompt_of,
    until_idle,
    with_limits,
)
from tests.unit.gateway.dispatch.acquisition.test_worker_acquisition import acquire, end, fail_at, learnt_as


@pytest.fixture
def shared():
    return DispatchStage("a", "b", shared=True)


async def test_the_shared_queue_decides_the_worker(shared):
    shared.queue.turns.append("b")
    placement = await acquire(shared)
    assert placement.worker.id == "b"
    assert [each.worker for each in shared.queue.placements] == ["b"]


async def test_the_queue_gets_the_cost_on_each_worker(shared):
    shared.policy.costs = {"a": 30.0, "b": 20.0}
    await acquire(shared)
    offered = shared.queue.offered[0]
    assert [(route.worker, route.uncached_tokens, route.fixed_ms) for route in offered] == [
        ("b", 640, 20.0),
        ("a", 640, 30.0),
    ]


async def test_a_request_that_waits_for_the_others_is_counted_as_waiting(shared):
    shared.queue.room.clear()
    request = shared.pending()
    waiting = acquire(shared, request=request)
    await until_idle()
    assert len(shared.rooms.of("m")) == 1
    assert request.progress.queued_at is not None
    shared.queue.room.set()
    await waiting
    assert len(shared.rooms.of("m")) == 0


async def test_a_turn_is_requested_with_the_ranking_of_that_moment(shared):
    shared.policy.costs = {"b": 500.0}
    shared.queue.room.clear()
    waiting = acquire(shared)
    await until_idle()
    shared.policy.costs = {"a": 500.0}
    shared.queue.room.set()
    assert (await waiting).worker.id == "b"


async def test_a_request_enters_again_where_the_queue_was_moved(shared):
    shared.queue.turns.append(TurnLost())
    assert (await acquire(shared)).worker.id == "a"
    assert len(list(shared.queue.placements)) == 1


async def test_a_request_that_enters_again_keeps_its_number(shared):
    request = shared.pending()
    shared.queue.turns.append(TurnLost())
    await acquire(shared, request=request)
    assert request.ticket.number == 0
    other = shared.pending()
    await acquire(shared, request=other)
    assert other.ticket.number == 1


async def test_a_turn_on_a_worker_that_has_left_meanwhile_is_given_back_and_requested_again(shared):
    def leaves():
        if WorkerId("a") in shared.fleet:
            shared.fleet.remove(WorkerId("a"))

    shared.queue.before_turn = leaves
    placement = await acquire(shared)
    assert placement.worker.id == "b"
    (lost, change), *_ = shared.queue.left
    assert (lost, change < 0) == ("g:1", True)
    assert [each.worker for each in shared.queue.placements] == ["b"]


async def test_a_request_without_any_route_has_no_worker(shared):
    for name in ("a", "b"):
        shared.fleet.drain(WorkerId(name))
    with pytest.raises(NoWorker):
        await acquire(shared)
    assert shared.reserved() == {}


async def test_a_turn_that_comes_too_late_for_its_target_is_given_back(shared):
    def pass_time():
        shared.clock.advance(10.0)
        for name in ("a", "b"):
            learnt_as(shared, name, 10.0)

    shared.queue.before_turn = pass_time
    with pytest.raises(TargetMissed):
        await acquire(shared, service_class=VOICE)
    assert shared.reserved() == {}


async def test_where_turns_are_given_here_again_the_request_goes_on_alone(shared):
    shared.queue.room.clear()
    waiting = acquire(shared)
    await until_idle()
    shared.queue.turns.append(TurnLost())
    shared.queue.shared = False
    shared.queue.room.set()
    assert (await waiting).worker.id == "a"


async def test_a_second_placement_is_where_no_gateway_has_a_waiting_request(shared):
    request = shared.pending()
    first = await acquire(shared, request=request)
    shared.queue.spares.append(WorkerId("b"))
    assert (await shared.acquisition.second_placement(request, first)).worker.id == "b"


async def test_without_spare_room_at_any_gateway_there_is_no_second_placement(shared):
    request = shared.pending()
    first = await acquire(shared, request=request)
    assert await shared.acquisition.second_placement(request, first) is None
    shared.placements.end(first, 0.0)
    assert shared.reserved() == {}


async def test_a_second_placement_on_a_worker_that_has_left_is_given_back(shared):
    request = shared.pending()
    first = await acquire(shared, request=request)
    shared.queue.spares.append(WorkerId("b"))
    shared.queue.before_turn = lambda: shared.fleet.remove(WorkerId("b"))
    assert await shared.acquisition.second_placement(request, first) is None
    shared.placements.end(first, 0.0)
    assert shared.reserved() == {}


async def test_a_placement_after_a_failure_is_announced_to_the_others(shared):
    request = shared.pending()
    placement = await acquire(shared, request=request)
    end(shared, request, placement)
    fail_at(request, "a")
    again = shared.acquisition.own_turns.place_after_failure(request)
    assert again.worker.id == "b"
    assert shared.placements.end(again, 0.0)


# Requests with a worker of their own (policies/admission/awaited_tokens.py).


async def that_waits_for_its_own_worker():
    """Return a stage where a request waits in the queue of two gateways; `a` holds most of its prompt."""
    stage = DispatchStage("a", "b", shared=True, limits=with_limits(hold=0.0))
    stage.router.reconfigure(routing_policy("cost", {}), None, 0)
    stage.index.confirm(SPACE, prompt_of(tokens=3200).hashes, WorkerId("a"))
    stage.queue.room.clear()
    waiting = acquire(stage, request=stage.pending(prompt=prompt_of(tokens=3200)))
    await until_idle()
    return stage, waiting


async def test_the_queue_of_all_gateways_gets_a_requests_own_worker_alone():
    stage, waiting = await that_waits_for_its_own_worker()
    stage.queue.room.set()
    assert (await waiting).worker.id == "a"
    await acquire(stage, request=stage.pending(prompt=prompt_of(first=9)))
    assert [{route.worker for route in offered} for offered in stage.queue.offered] == [{"a"}, {"a", "b"}]


async def test_a_prompt_that_waits_counts_as_often_as_there_are_gateways_until_it_is_sent():
    stage, waiting = await that_waits_for_its_own_worker()
    assert stage.router.awaited.tokens == {"a": 2 * 64}
    stage.queue.room.set()
    await waiting
    assert stage.router.awaited.tokens == {}


async def test_a_prompt_counts_nowhere_once_its_client_has_left_the_queue_of_all_gateways():
    stage, waiting = await that_waits_for_its_own_worker()
    waiting.cancel()
    await until_idle()
    assert stage.router.awaited.tokens == {}
