"""How a request gets its placement: at once, in its turn, at a provider, or not at all; alone and with others."""

import asyncio

import pytest

from gateway.dispatch.acquisition.request_ranking import queued_request
from gateway.dispatch.preemption import PreemptibleAttempt
from gateway.domain.errors import AdmissionTimeout, DeadlinePassed, NoWorker, Overloaded, TargetMissed
from gateway.domain.request import Surface
from gateway.domain.token_usage import ChargedTokens
from gateway.queueing.shared.keys import BATCH as BATCH_QUEUE
from gateway.queueing.shared.shared_queue import AskAnew
from gateway.quotas.limit import concurrency
from policies.latency_model import PrefillFit, predicted_ttft_ms
from policies.service_class import BATCH, CHAT, CODE, VOICE
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import (
    SPACE,
    DispatchStage,
    inference,
    prompt_of,
    tenant,
    until_idle,
    with_class,
    with_limits,
)
from workers.adapter import FailureKind, WorkerUnreachable
from workers.worker import Role

CONSENTS = tenant(may_overflow=True)


@pytest.fixture
def stage():
    return DispatchStage("a", "b")


def full(*names, **options):
    """Return a stage on which no worker has room."""
    stage = DispatchStage(*(names or ("a", "b")), **options)
    for name in names or ("a", "b"):
        stage.occupy(name)
    return stage


def acquire(stage, *, request=None, **context):
    """Begin to acquire a placement for a new request."""
    request = request or stage.pending(stage.context(**context))
    return asyncio.ensure_future(stage.acquisition.acquire(request))


def fail_at(request, *names):
    for name in names:
        request.failed[WorkerId(name)] = WorkerUnreachable("gone")


def learnt_as(stage, name, ms_per_token):
    """Let a worker be known to take this long for a token."""
    worker = stage.worker(name)
    for _ in range(200):
        for tokens in (100, 1000):
            stage.fleet.first_token(worker, tokens=tokens, ttft_ms=ms_per_token * tokens)


def end(stage, request, placement):
    stage.acquisition.end_turn(request, None, lambda change: stage.placements.end(placement, change))


# Alone.


async def test_with_room_the_best_worker_is_taken_at_once(stage):
    stage.policy.costs = {"a": 50.0, "b": 20.0}
    assert (await acquire(stage)).worker.id == "b"


async def test_a_request_that_is_placed_at_once_has_not_queued(stage):
    request = stage.pending()
    await acquire(stage, request=request)
    assert request.progress.queued_at is None


async def test_a_placement_counts_on_its_worker_before_the_next_request_is_ranked(stage):
    request = stage.pending()
    await acquire(stage, request=request)
    assert stage.worker("a").load.tokens_queued == 640


async def test_without_room_a_request_waits_and_is_placed_once_there_is(stage):
    stage = full("a")
    waiting = acquire(stage)
    await until_idle()
    assert not waiting.done()
    stage.free("a")
    assert (await waiting).worker.id == "a"


async def test_a_request_that_waited_notes_from_when_to_when(stage):
    stage = full("a")
    request = stage.pending()
    waiting = acquire(stage, request=request)
    await until_idle()
    began = stage.clock()
    stage.clock.advance(3.0)
    stage.free("a")
    await waiting
    assert (request.progress.queued_at, request.progress.queued_until) == (began, began + 3.0)


async def test_requests_get_their_placements_in_the_order_in_which_they_came():
    stage = full("a", queue="fifo")
    waiting = []
    for _ in range(3):
        waiting.append(acquire(stage))
        await until_idle()
    placed = []
    stage.free("a")
    for turn in waiting:
        placement = await turn
        placed.append([other.done() for other in waiting])
        stage.placements.end(placement, 0.0)
        stage.rooms.room_made()
    assert placed == [[True, False, False], [True, True, False], [True, True, True]]


async def test_a_later_request_does_not_take_the_room_that_an_earlier_one_waits_for():
    stage = full("a")
    first = acquire(stage)
    await until_idle()
    stage.worker("a").load.tokens_queued = 0
    second = acquire(stage)
    await until_idle()
    assert not second.done()
    stage.rooms.room_made()
    assert (await first).worker.id == "a"
    second.cancel()


async def test_a_request_that_leaves_while_it_waits_leaves_nothing():
    stage = full("a")
    waiting = acquire(stage)
    await until_idle()
    waiting.cancel()
    await until_idle()
    stage.free("a")
    assert stage.reserved() == {}


async def test_a_placement_given_in_the_moment_of_leaving_is_given_back():
    stage = full("a")
    waiting = acquire(stage)
    await until_idle()
    stage.free("a")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert stage.reserved() == {}


async def test_a_wait_that_is_too_long_ends_with_a_refusal():
    stage = full("a", waiting_seconds_max=0.01)
    with pytest.raises(AdmissionTimeout):
        await acquire(stage)
    stage.free("a")
    assert stage.reserved() == {}


async def test_a_model_that_no_worker_serves_has_no_worker(stage):
    for name in ("a", "b"):
        stage.fleet.drain(WorkerId(name))
    with pytest.raises(NoWorker):
        await acquire(stage)


async def test_waiting_requests_end_when_the_last_worker_leaves():
    stage = full("a")
    waiting = acquire(stage)
    await until_idle()
    stage.fleet.remove(WorkerId("a"))
    stage.rooms.room_made()
    with pytest.raises(NoWorker):
        await waiting


async def test_a_request_that_the_policy_cannot_rank_fails_alone():
    stage = full("a", queue="fifo")
    failing = acquire(stage)
    await until_idle()
    other = acquire(stage)
    await until_idle()
    stage.policy.failing.add(0)
    stage.free("a")
    with pytest.raises(ZeroDivisionError):
        await failing
    assert (await other).worker.id == "a"


async def test_a_request_waits_for_its_best_worker_rather_than_take_one_much_dearer():
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.1), passed_max=4)
    stage.policy.costs = {"a": 100.0, "b": 500.0}
    stage.occupy("a")
    waiting = acquire(stage)
    await until_idle()
    assert not waiting.done()
    stage.free("a")
    assert (await waiting).worker.id == "a"


async def test_a_request_takes_a_worker_that_is_nearly_as_good_at_once():
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.1))
    stage.policy.costs = {"a": 100.0, "b": 105.0}
    stage.occupy("a")
    assert (await acquire(stage)).worker.id == "b"


async def test_without_such_a_rule_any_worker_with_room_will_do(stage):
    stage.policy.costs = {"a": 100.0, "b": 5000.0}
    stage.occupy("a")
    assert (await acquire(stage)).worker.id == "b"


def test_a_worker_that_an_earlier_request_waits_for_is_not_taken(stage):
    request = stage.pending()
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    assert stage.acquisition.own_turns.place_now(request, {WorkerId("a")}).worker.id == "b"


def test_a_request_without_room_names_the_workers_that_it_waits_for():
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.1))
    stage.policy.costs = {"a": 100.0, "b": 500.0}
    stage.occupy("a")
    request, closed = stage.pending(), set()
    assert stage.acquisition.own_turns.place_now(request, closed) is None
    assert closed == {"a"}


async def test_a_prompt_longer_than_the_window_goes_to_an_idle_worker_alone(stage):
    stage.occupy("a", 1)
    prompt = prompt_of(6400)
    placement = await acquire(stage, request=stage.pending(stage.context(), prompt))
    assert placement.worker.id == "b"


async def test_cached_tokens_take_no_room(stage):
    prompt = prompt_of(960)
    stage.index.confirm(SPACE, prompt.hashes, WorkerId("a"))
    placement = await acquire(stage, request=stage.pending(stage.context(), prompt))
    assert placement.load_share.tokens_queued == 64


async def test_the_ticket_tells_the_queue_what_the_request_costs(stage):
    prompt = prompt_of(640)
    stage.index.confirm(SPACE, prompt.hashes, WorkerId("a"))
    request = stage.pending(stage.context(), prompt)
    await acquire(stage, request=request)
    ticket = request.ticket
    assert (ticket.uncached_tokens, ticket.cached_tokens, ticket.worker) == (64, 576, "a")
    assert request.charged_units == ticket.cost == 64 + 0.1 * 576 + 2.0 * request.output_tokens


# After a failure.


def test_after_a_failure_no_room_is_needed():
    stage = full()
    request = stage.pending()
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    fail_at(request, "a")
    assert stage.acquisition.own_turns.place_now(request).worker.id == "b"


def test_after_all_workers_have_failed_there_is_no_placement(stage):
    request = stage.pending()
    fail_at(request, "a", "b")
    assert stage.acquisition.own_turns.place_now(request) is None


def test_after_a_failure_a_dearer_worker_will_do():
    stage = DispatchStage("a", "b", "c", limits=with_limits(hold=0.0))
    stage.policy.costs = {"b": 10.0, "c": 9000.0}
    request = stage.pending()
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    fail_at(request, "a", "b")
    assert stage.acquisition.own_turns.place_now(request).worker.id == "c"


# Several tenants.


def contended(*names):
    """Return a stage on which a tenant has requests waiting beside others that have none."""
    stage = DispatchStage(*names, limits=with_limits(hold=0.0, release_window_tokens=16_384))
    for name in names:
        learnt_as(stage, name, 0.02)
    stage.window.of_all.see("m", CHAT.ttft_seconds, "flood", crowds=True)
    stage.window.of_all.see("m", CHAT.ttft_seconds, "victim", crowds=False)
    return stage


def turn_of(stage, tokens):
    """Return the placement of a new request whose turn it is; None if it has to wait."""
    request = stage.pending(prompt=prompt_of(tokens, first=tokens))
    request.ticket = stage.rooms.of("m").ticket(queued_request(request, ()))
    return stage.acquisition.own_turns.place_now(request, set())


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


def test_of_several_workers_a_long_prompt_leaves_one_open():
    stage = contended("a", "b", "c", "d")
    for name in ("a", "b"):
        stage.occupy(name, 20_000)
    assert turn_of(stage, 48_000).worker.id in ("c", "d")
    assert turn_of(stage, 48_000) is None
    assert turn_of(stage, 640).worker.id in ("c", "d")


# Late requests.


async def test_a_class_that_rejects_turns_away_what_no_worker_can_answer_in_time(stage):
    for name in ("a", "b"):
        learnt_as(stage, name, 10.0)
    with pytest.raises(TargetMissed):
        await acquire(stage, service_class=VOICE)


async def test_after_a_stall_idle_workers_turn_no_request_away(stage):
    for name in ("a", "b"):
        worker = stage.worker(name)
        # As it was learnt of an engine on a busy machine.
        fit = PrefillFit(fixed_ms=164.0, ms_per_token=0.01, error_ms=46.0, samples=1000)
        worker.learnt.own.fit, worker.learnt._speed = fit, fit.speed(worker.speed)
        assert predicted_ttft_ms(worker.speed, 640) > 1000 * VOICE.ttft_seconds
    assert (await acquire(stage, service_class=VOICE)).worker.id in ("a", "b")


async def test_a_worker_with_few_samples_is_assumed_to_be_in_time(stage):
    assert (await acquire(stage, service_class=VOICE)).worker.id == "a"


async def test_a_class_that_prefers_another_worker_gets_one_in_time(stage):
    learnt_as(stage, "a", 10.0)
    assert (await acquire(stage, service_class=CODE)).worker.id == "b"


async def test_a_class_that_prefers_another_worker_takes_the_best_if_none_is_in_time(stage):
    for name in ("a", "b"):
        learnt_as(stage, name, 10.0)
    assert (await acquire(stage, service_class=CODE)).worker.id == "a"


async def test_a_late_request_of_a_class_that_demotes_goes_on_as_batch_work(stage):
    for name in ("a", "b"):
        learnt_as(stage, name, 10.0)
    request = stage.pending(stage.context(with_class(CHAT, late="demote")))
    placement = await acquire(stage, request=request)
    assert (request.service_class, request.queue) == (BATCH, f"m{BATCH_QUEUE}")
    assert placement.worker.id == "a"


async def test_a_request_that_waits_past_its_target_is_demoted_and_waits_on():
    stage = full("a")
    request = stage.pending(stage.context(with_class(CHAT, late="demote", ttft_seconds=0.01)))
    waiting = acquire(stage, request=request)
    async with asyncio.timeout(10):
        while request.service_class is not BATCH:
            await asyncio.sleep(0.005)
    await until_idle()
    assert not waiting.done()
    stage.free("a")
    assert (await waiting).worker.id == "a"


async def test_a_request_whose_client_will_be_gone_is_not_sent(stage):
    for name in ("a", "b"):
        learnt_as(stage, name, 10.0)
    with pytest.raises(DeadlinePassed):
        await acquire(stage, expires_at=stage.clock() + 0.1)


async def test_a_request_whose_client_leaves_while_it_waits_is_let_go():
    stage = full("a")
    with pytest.raises(DeadlinePassed):
        await acquire(stage, expires_at=stage.clock() + 0.01)
    stage.free("a")
    assert stage.reserved() == {}


# Providers.


def with_provider(*names, **terms):
    stage = full(*names) if names else DispatchStage("a", "b")
    stage.provider(**{"after_seconds": 0.01, **terms})
    return stage


async def test_a_request_whose_tenant_consents_goes_to_a_provider_after_its_wait():
    stage = with_provider("a")
    request = stage.pending(stage.context(tenant=CONSENTS))
    placement = await acquire(stage, request=request)
    assert placement.worker.id == "cloud"
    assert request.providers_tried == {"cloud"}


async def test_a_request_without_consent_waits_on():
    stage = with_provider("a")
    waiting = acquire(stage)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()


async def test_with_room_here_no_provider_is_asked():
    stage = with_provider()
    assert (await acquire(stage, tenant=CONSENTS)).worker.id == "a"


async def test_without_a_worker_here_the_provider_is_asked_at_once():
    stage = with_provider(after_seconds=1000.0)
    for name in ("a", "b"):
        stage.fleet.drain(WorkerId(name))
    assert (await acquire(stage, tenant=CONSENTS)).worker.id == "cloud"


async def test_batch_work_waits_for_workers_here():
    stage = with_provider("a")
    waiting = acquire(stage, tenant=CONSENTS, service_class=BATCH)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()


async def test_batch_work_that_no_worker_here_serves_goes_to_a_provider():
    stage = with_provider()
    for name in ("a", "b"):
        stage.fleet.drain(WorkerId(name))
    assert (await acquire(stage, tenant=CONSENTS, service_class=BATCH)).worker.id == "cloud"


async def test_a_request_that_no_worker_can_answer_in_time_goes_to_a_provider():
    stage = with_provider()
    for name in ("a", "b"):
        learnt_as(stage, name, 10.0)
    assert (await acquire(stage, tenant=CONSENTS, service_class=VOICE)).worker.id == "cloud"


async def test_a_placement_at_a_provider_holds_some_of_its_limits():
    stage = with_provider("a", limits=(concurrency(1),))
    placement = await acquire(stage, tenant=CONSENTS)
    assert placement.provider_lease is not None
    assert len(stage.leases) == 1


async def test_a_provider_at_its_limit_is_passed_over_and_the_request_waits_for_a_worker():
    stage = with_provider("a", limits=(concurrency(1),))
    await acquire(stage, tenant=CONSENTS)
    waiting = acquire(stage, tenant=CONSENTS)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert stage.provider_quota.refused["cloud"] == 1
    stage.free("a")
    assert (await waiting).worker.id == "a"


async def test_without_a_worker_a_resting_provider_says_when_to_come_back():
    stage = with_provider()
    for name in ("a", "b"):
        stage.fleet.drain(WorkerId(name))
    stage.fleet.rest(WorkerId("cloud"), 20.0)
    with pytest.raises(Overloaded) as refusal:
        await acquire(stage, tenant=CONSENTS)
    assert refusal.value.retry_after_seconds == 20.0


async def test_batch_work_stays_with_the_workers_of_its_model_after_a_failure():
    stage = with_provider()
    request = stage.pending(stage.context(BATCH, tenant=CONSENTS))
    assert await stage.acquisition.at_provider_after_failure(request, "why") is None


async def test_other_work_goes_to_a_provider_after_a_failure():
    stage = with_provider()
    request = stage.pending(stage.context(tenant=CONSENTS))
    placement = await stage.acquisition.at_provider_after_failure(request, "why")
    assert placement.worker.id == "cloud"


async def test_a_provider_that_has_failed_is_not_asked_again():
    stage = with_provider()
    request = stage.pending(stage.context(tenant=CONSENTS))
    fail_at(request, "cloud")
    assert await stage.acquisition.at_provider(request, "why") is None


async def test_what_a_provider_cannot_do_is_not_sent_there():
    stage = with_provider()
    asked = inference(surface=Surface.TOKENIZE, stream=False)
    request = stage.pending(stage.context(tenant=CONSENTS, request=asked))
    assert await stage.acquisition.at_provider(request, "why") is None


# A second placement for the same request.


async def test_a_second_placement_is_on_another_worker_at_no_cost(stage):
    request = stage.pending()
    first = await acquire(stage, request=request)
    second = await stage.acquisition.second_placement(request, first)
    assert (first.worker.id, second.worker.id, second.ticket.cost) == ("a", "b", 0.0)


async def test_a_second_placement_needs_room(stage):
    request = stage.pending()
    first = await acquire(stage, request=request)
    stage.occupy("b")
    assert await stage.acquisition.second_placement(request, first) is None


async def test_a_second_placement_is_not_given_while_a_request_waits():
    stage = DispatchStage("a")
    request = stage.pending()
    first = await acquire(stage, request=request)
    waiting = acquire(stage)
    await until_idle()
    stage.join("b")
    assert await stage.acquisition.second_placement(request, first) is None
    stage.rooms.room_made()
    assert (await waiting).worker.id == "b"


async def test_a_second_placement_of_a_pair_uses_neither_of_its_workers():
    stage = DispatchStage()
    for name in ("a", "b"):
        stage.fleet.remove(WorkerId(name))
    stage.join("p", kind="vllm", role=Role.PREFILL)
    stage.join("d", kind="vllm", role=Role.DECODE)
    request = stage.pending()
    first = await acquire(stage, request=request)
    assert (first.prefill_worker.id, first.worker.id) == ("p", "d")
    assert await stage.acquisition.second_placement(request, first) is None


# Settling in the queue.


async def test_a_tenant_is_charged_in_the_queue_for_what_was_used(stage):
    request = stage.pending()
    placement = await acquire(stage, request=request)
    changes = []
    used = ChargedTokens(prompt_tokens=640, cached_tokens=600, output_tokens=3)
    estimate = request.charged_units
    stage.acquisition.end_turn(
        request, used, lambda change: changes.append(change) or stage.placements.end(placement, change)
    )
    assert changes == [40 + 0.1 * 600 + 2.0 * 3 - estimate]


async def test_a_request_that_used_nothing_gets_its_whole_charge_back(stage):
    request = stage.pending()
    placement = await acquire(stage, request=request)
    end(stage, request, placement)
    assert stage.rooms.of("m").debts() == {}


async def test_ending_a_turn_twice_changes_nothing(stage):
    request = stage.pending()
    await acquire(stage, request=request)
    used, changes = ChargedTokens(prompt_tokens=640), []
    for _ in range(2):
        stage.acquisition.end_turn(request, used, lambda change: bool(changes.append(change)))
    assert changes[1] == 0.0


# Shared with other gateways.


@pytest.fixture
def shared():
    return DispatchStage("a", "b", shared=True)


async def test_all_gateways_together_say_which_worker_it_is(shared):
    shared.queue.turns.append("b")
    placement = await acquire(shared)
    assert placement.worker.id == "b"
    assert [each.worker for each in shared.queue.placements] == ["b"]


async def test_the_queue_hears_what_each_worker_would_cost(shared):
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


async def test_a_turn_is_asked_for_with_the_ranking_of_that_moment(shared):
    shared.policy.costs = {"b": 500.0}
    shared.queue.room.clear()
    waiting = acquire(shared)
    await until_idle()
    shared.policy.costs = {"a": 500.0}
    shared.queue.room.set()
    assert (await waiting).worker.id == "b"


async def test_a_request_asks_anew_where_the_queue_was_moved(shared):
    shared.queue.turns.append(AskAnew())
    assert (await acquire(shared)).worker.id == "a"
    assert len(list(shared.queue.placements)) == 1


async def test_a_request_that_asks_anew_keeps_its_number(shared):
    request = shared.pending()
    shared.queue.turns.append(AskAnew())
    await acquire(shared, request=request)
    assert request.ticket.number == 0
    other = shared.pending()
    await acquire(shared, request=other)
    assert other.ticket.number == 1


async def test_a_turn_on_a_worker_that_has_left_meanwhile_is_given_back_and_asked_anew(shared):
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
    shared.queue.turns.append(AskAnew())
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


async def test_a_placement_after_a_failure_is_told_to_the_others(shared):
    request = shared.pending()
    placement = await acquire(shared, request=request)
    end(shared, request, placement)
    fail_at(request, "a")
    again = shared.acquisition.own_turns.place_now(request)
    assert again.worker.id == "b"
    assert shared.placements.end(again, 0.0)


# Preemption of batch work.


def sent_batch_work(stage, name, tokens):
    """Let a batch request of so many tokens wait for its first byte on a worker."""
    request = stage.pending(stage.context(BATCH), prompt_of(tokens, first=77))
    request.ticket = stage.rooms.of(request.queue).ticket(queued_request(request, ()))
    placement = stage.acquisition.own_turns.place_now(request)
    assert placement.worker.id == name
    attempt = PreemptibleAttempt(placement)
    stage.preemption.add(attempt)
    return attempt


async def waiting_with(stage, **context):
    """Begin a request that finds no room; return it, and whether batch work was cut off for it."""
    cut = []
    for attempt in stage.preemption._attempts:
        opening = asyncio.ensure_future(attempt.first_byte(asyncio.sleep(3600)))
        cut.append(opening)
    await until_idle()
    waiting = acquire(stage, **context)
    await until_idle()
    await asyncio.sleep(0.01)
    done = [opening.done() for opening in cut]
    for opening in [*cut, waiting]:
        opening.cancel()
    await asyncio.gather(*cut, waiting, return_exceptions=True)
    return done


async def test_a_request_that_finds_no_room_takes_that_of_batch_work():
    stage = DispatchStage("a", limits=with_limits(preempts=True))
    sent_batch_work(stage, "a", 960)
    assert await waiting_with(stage) == [True]


async def test_batch_work_does_not_take_the_room_of_batch_work():
    stage = DispatchStage("a", limits=with_limits(preempts=True))
    sent_batch_work(stage, "a", 960)
    assert await waiting_with(stage, service_class=BATCH) == [False]


async def test_where_the_settings_do_not_say_so_batch_work_keeps_its_room():
    stage = DispatchStage("a")
    sent_batch_work(stage, "a", 960)
    assert await waiting_with(stage) == [False]


async def test_other_gateways_are_asked_for_room_where_this_one_has_no_batch_work():
    stage = DispatchStage("a", shared=True, limits=with_limits(preempts=True))
    stage.queue.room.clear()
    await waiting_with(stage)
    assert [(need.worker, need.tokens) for need in stage.needs.sent[0]] == [("a", 640)]


async def test_a_gateway_that_is_alone_asks_no_other_for_room():
    stage = full("a", limits=with_limits(preempts=True))
    await waiting_with(stage)
    assert stage.needs.sent == []


async def test_a_failure_of_another_kind_leaves_the_worker_out_of_the_ranking(stage):
    request = stage.pending()
    request.failed[WorkerId("a")] = WorkerUnreachable("busy", failure=FailureKind.BUSY)
    assert (await acquire(stage, request=request)).worker.id == "b"
