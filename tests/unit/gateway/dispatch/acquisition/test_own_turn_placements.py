"""Placements in turns that this gateway gives: which worker a request takes, or waits for."""

import asyncio
from math import inf

import pytest
from msgspec.structs import replace

from gateway.dispatch.acquisition.request_ranking import queued_request
from gateway.dispatch.last_ranking import KEPT_SECONDS
from policies.admission.closed_workers import ClosedWorkers
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import FilledWorkers
from policies.admission.search_bounds import PASSED_OVER_OF_FLOW_MAX
from policies.registry import routing_policy
from policies.service_class import BATCH, CHAT, VOICE
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import (
    SPACE,
    WINDOW,
    DispatchStage,
    prompt_of,
    until_idle,
    with_limits,
)
from tests.unit.gateway.dispatch.acquisition.test_worker_acquisition import fail_at, full, learnt_as


@pytest.fixture
def stage():
    return DispatchStage("a", "b")


def test_a_worker_that_an_earlier_request_waits_for_is_not_taken(stage):
    request, closed = stage.pending(), ClosedWorkers()
    closed.close([WorkerId("a")], crowds=False)
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    assert stage.acquisition.own_turns.place_now(request, closed).worker.id == "b"


def test_a_request_without_room_names_the_workers_that_it_waits_for():
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.1))
    stage.policy.costs = {"a": 100.0, "b": 500.0}
    stage.occupy("a")
    request, closed = stage.pending(), ClosedWorkers()
    assert stage.acquisition.own_turns.place_now(request, closed) is None
    assert closed == {"a"}


# The last ranking of a request that is passed over.


@pytest.fixture
def passed_over():
    """Return a stage, and a request that waits for the full worker `a` while `b` has room."""
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.1))
    stage.policy.costs = {"a": 100.0, "b": 500.0}
    stage.occupy("a")
    request = stage.pending()
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    assert stage.acquisition.own_turns.place_now(request, ClosedWorkers()) is None
    return stage, request


def looks(stage, request, count=1):
    """Look at the request so often in one moment; return its placement, and how often it was ranked."""
    ranked, place_now = stage.policy.ranked, stage.acquisition.own_turns.place_now
    found = [place_now(request, ClosedWorkers()) for _ in range(count)]
    return found[-1], stage.policy.ranked - ranked


def test_looks_in_vain_at_a_request_need_no_new_ranking(passed_over):
    assert looks(*passed_over, count=20) == (None, 0)


def test_a_look_without_a_new_ranking_names_the_workers_that_the_request_waits_for(passed_over):
    (stage, request), closed = passed_over, ClosedWorkers()
    assert stage.acquisition.own_turns.place_now(request, closed) is None
    assert closed == {"a"}


def test_a_request_is_ranked_again_and_placed_once_its_worker_has_room(passed_over):
    stage, request = passed_over
    stage.free("a")
    placement, ranked = looks(stage, request)
    assert (placement.worker.id, ranked) == ("a", 1)


def test_a_request_is_ranked_again_when_its_ranking_is_old(passed_over):
    stage, request = passed_over
    stage.policy.costs = {"a": 500.0, "b": 100.0}
    stage.clock.advance(KEPT_SECONDS)
    placement, ranked = looks(stage, request)
    assert (placement.worker.id, ranked) == ("b", 1)


def test_a_request_is_ranked_again_when_a_worker_has_joined(passed_over):
    stage, request = passed_over
    stage.join("c")
    placement, ranked = looks(stage, request)
    assert (placement.worker.id, ranked) == ("c", 1)


def test_a_request_is_ranked_again_when_its_worker_has_become_dearer_than_the_free_one(passed_over):
    stage, request = passed_over
    stage.policy.ms_per_queued_token = 1.0
    stage.clock.advance(KEPT_SECONDS)
    assert looks(stage, request) == (None, 1)
    stage.occupy("a", 500)
    assert looks(stage, request)[1] == 1


# Filled workers: `a` is open, `b` is filled.


NARROW = 100


def beside_filled(service_class, *, costs, tokens=None):
    """Return a stage with a request of this class; by default its prompt is longer than the narrow window."""
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.0))
    stage.policy.costs = costs
    filled = FilledWorkers(last_open=WorkerId("a"), tokens=WINDOW, patient_seconds=0.3)
    window = DispatchWindow(narrow=NARROW, wide=WINDOW, counts_own=True, filled=filled)
    stage.window.of_all_gateways.of = lambda model: window
    request = stage.pending(prompt=prompt_of(tokens=tokens or WINDOW // 2))
    request.service_class = service_class
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    return stage, request


@pytest.mark.parametrize(("service_class", "goes"), [(VOICE, "a"), (CHAT, "b"), (BATCH, "b")])
def test_urgent_requests_go_to_open_workers_and_long_prompts_of_others_to_filled_ones(service_class, goes):
    stage, request = beside_filled(service_class, costs={"a": 10.0, "b": 10.0})
    assert stage.acquisition.own_turns.place_now(request).worker.id == goes


@pytest.mark.parametrize("service_class", [CHAT, BATCH])
@pytest.mark.parametrize(("cost_of_filled", "goes"), [(190.0, "b"), (300.0, None)])
def test_a_patient_request_waits_beside_a_filled_worker_with_room_only_for_a_cache(
    service_class, cost_of_filled, goes
):
    stage, request = beside_filled(service_class, costs={"a": 100.0, "b": cost_of_filled}, tokens=64)
    stage.occupy("a", NARROW)
    placed = stage.acquisition.own_turns.place_now(request, ClosedWorkers())
    assert (placed.worker.id if placed is not None else None) == goes


@pytest.mark.parametrize("service_class", [CHAT, BATCH])
def test_a_patient_request_takes_a_dear_filled_worker_where_the_open_one_has_no_slot_for_it(service_class):
    stage, request = beside_filled(service_class, costs={"a": 100.0, "b": 300.0}, tokens=64)
    worker = stage.worker("a")
    worker.known_slots = 4
    worker.load.streams += 3
    assert stage.acquisition.own_turns.place_now(request, ClosedWorkers()).worker.id == "b"


@pytest.mark.parametrize(("service_class", "goes"), [(CHAT, True), (BATCH, False)])
def test_batch_work_leaves_slots_of_an_engine_to_other_classes(service_class, goes):
    stage, request = beside_filled(service_class, costs={"a": 10.0, "b": 10.0})
    worker = stage.worker("b")
    worker.known_slots = 2
    worker.load.streams += 1
    assert (stage.acquisition.own_turns.place_now(request) is not None) is goes


# After a failure.


def test_after_a_failure_no_room_is_needed():
    stage = full()
    request = stage.pending()
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    fail_at(request, "a")
    assert stage.acquisition.own_turns.place_after_failure(request).worker.id == "b"


def test_after_all_workers_have_failed_there_is_no_placement(stage):
    request = stage.pending()
    fail_at(request, "a", "b")
    assert stage.acquisition.own_turns.place_after_failure(request) is None


def test_after_a_failure_a_dearer_worker_will_do():
    stage = DispatchStage("a", "b", "c", limits=with_limits(hold=0.0))
    stage.policy.costs = {"b": 10.0, "c": 9000.0}
    request = stage.pending()
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    fail_at(request, "a", "b")
    assert stage.acquisition.own_turns.place_after_failure(request).worker.id == "c"


# Several tenants.


def contended(*names):
    """Return a stage on which a tenant has requests waiting beside others that have none."""
    stage = DispatchStage(*names, limits=with_limits(hold=0.0, release_window_tokens=16_384))
    for name in names:
        learnt_as(stage, name, 0.02)
    stage.window.of_all_gateways.note_request("m", CHAT.ttft_seconds, "flood", tokens=100_000, crowds=True)
    stage.window.of_all_gateways.note_request("m", CHAT.ttft_seconds, "victim", tokens=1000, crowds=False)
    return stage


def turn_of(stage, tokens, work_share=0.0):
    """Return the placement of a new request whose turn it is; None if it has to wait."""
    request = stage.pending(prompt=prompt_of(tokens, first=tokens))
    asked = replace(queued_request(request, ()), work_share=work_share)
    request.ticket = stage.rooms.of("m").ticket(asked)
    return stage.acquisition.own_turns.place_now(request, ClosedWorkers())


@pytest.mark.parametrize("crowded", [False, True])
def test_a_tenant_beside_one_that_crowds_does_not_wait_for_a_slightly_better_worker(crowded):
    stage = contended("a", "b") if crowded else DispatchStage("a", "b", limits=with_limits(hold=0.0))
    stage.policy.costs = {"a": 500.0, "b": 900.0}
    stage.occupy("a", 20_000)
    placement = turn_of(stage, 640)
    assert (placement is not None and placement.worker.id == "b") is crowded


def test_a_tenant_beside_one_that_crowds_leaves_no_cache_that_is_worth_a_wait():
    stage = contended("a", "b")
    stage.policy.costs = {"a": 500.0, "b": 1100.0}
    stage.occupy("a", 20_000)
    assert turn_of(stage, 640) is None


def test_of_several_workers_a_long_prompt_of_a_tenant_with_much_of_the_work_leaves_one_open():
    stage = contended("a", "b", "c", "d")
    for name in ("a", "b"):
        stage.occupy(name, 20_000)
    assert turn_of(stage, 48_000, work_share=0.3).worker.id in ("c", "d")
    assert turn_of(stage, 48_000, work_share=0.3) is None
    assert turn_of(stage, 640).worker.id in ("c", "d")


@pytest.mark.parametrize(("beyond_wide", "has_room"), [(0, True), (1, False)])
def test_the_last_idle_worker_takes_a_crowds_prompt_within_the_wide_window(beyond_wide, has_room):
    stage = contended("a", "b", "c", "d")
    for name in ("a", "b", "c"):
        stage.occupy(name, 20_000)
    window, own_turns = stage.window.of("m"), stage.acquisition.own_turns
    request = stage.pending(prompt=prompt_of(window.wide + beyond_wide))
    routes = own_turns._ranking.rank(request).routes
    idle = next(route for route in routes if route.worker == "d")
    found = own_turns.has_room(idle.worker, idle, request, routes, window, is_narrow=True)
    assert window.narrow < window.wide
    assert found is has_room


@pytest.mark.parametrize(("work_share", "goes"), [(0.4, "a"), (0.6, None)])
def test_the_first_long_prompts_of_a_flood_leave_an_open_worker_idle(work_share, goes):
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.0))
    stage.occupy("b", WINDOW)
    filled = FilledWorkers(last_open=WorkerId("a"), tokens=WINDOW, patient_seconds=inf, open_tokens=NARROW)
    window = DispatchWindow(narrow=WINDOW, wide=WINDOW, filled=filled)
    stage.window.of_all_gateways.of = lambda model: window
    placed = turn_of(stage, WINDOW // 2, work_share=work_share)
    assert (placed.worker.id if placed is not None else None) == goes


def test_a_long_prompt_of_a_tenant_with_little_of_the_work_takes_the_last_idle_worker():
    stage = contended("a", "b", "c", "d")
    for name in ("a", "b", "c"):
        stage.occupy(name, 20_000)
    assert turn_of(stage, 48_000, work_share=0.2).worker.id == "d"


# Requests with a worker of their own (policies/admission/awaited_tokens.py).


async def that_waits_for_its_own_worker():
    """Return a stage with a request that waits for `a`, which is full and holds its prompt but for the end."""
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.0), passed_over_max=16)
    stage.router.reconfigure(routing_policy("cost", {}), None, 0)
    stage.index.confirm(SPACE, prompt_of(tokens=3200).hashes, WorkerId("a"))
    stage.occupy("a")
    waiting = asyncio.create_task(stage.acquisition.acquire(stage.pending(prompt=prompt_of(tokens=3200))))
    await until_idle()
    return stage, waiting


async def test_a_prompt_that_waits_counts_at_its_own_worker_in_the_ranking_of_others():
    stage, waiting = await that_waits_for_its_own_worker()
    assert stage.router.awaited.tokens == {"a": 64}
    request = stage.pending(prompt=prompt_of(first=9))
    ranked = stage.acquisition.own_turns._ranking.rank(request)
    queued = {each.worker.id: each.worker.tokens_queued for each in ranked.candidates}
    assert queued == {"a": stage.worker("a").load.all_tokens_queued + 64, "b": 0}
    stage.free("a")
    assert (await waiting).worker.id == "a"
    assert stage.router.awaited.tokens == {}


async def test_what_waits_counts_nowhere_while_requests_wait_for_every_worker():
    stage, waiting = await that_waits_for_its_own_worker()
    elsewhere = prompt_of(tokens=3200, first=9)
    stage.index.confirm(SPACE, elsewhere.hashes, WorkerId("b"))
    stage.occupy("b")
    other = asyncio.create_task(stage.acquisition.acquire(stage.pending(prompt=elsewhere)))
    await until_idle()
    assert stage.router.awaited.tokens.keys() == {"a", "b"}
    ranked = stage.acquisition.own_turns._ranking.rank(stage.pending(prompt=prompt_of(first=17)))
    assert {each.worker.id: each.worker.tokens_queued for each in ranked.candidates} == {
        name: stage.worker(name).load.all_tokens_queued for name in ("a", "b")
    }
    stage.free("b")
    assert (await other).worker.id == "b"
    waiting.cancel()
    await until_idle()


async def test_a_request_that_leaves_no_longer_counts_where_it_waited():
    stage, waiting = await that_waits_for_its_own_worker()
    waiting.cancel()
    await until_idle()
    assert stage.router.awaited.tokens == {}


async def test_requests_that_wait_for_a_full_worker_keep_none_from_a_free_one():
    stage, waiting = await that_waits_for_its_own_worker()
    others = [
        asyncio.create_task(stage.acquisition.acquire(stage.pending(prompt=prompt_of(tokens=3200))))
        for _ in range(PASSED_OVER_OF_FLOW_MAX + 1)
    ]
    await until_idle()
    last = asyncio.create_task(stage.acquisition.acquire(stage.pending(prompt=prompt_of(first=9))))
    await until_idle()
    assert (await last).worker.id == "b"
    assert not any(each.done() for each in (waiting, *others))
    for each in (waiting, *others):
        each.cancel()
    await until_idle()
