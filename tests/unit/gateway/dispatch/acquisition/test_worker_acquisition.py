"""Worker acquisition: at once, in a turn, at a provider, or refused; in one gateway and in several."""

import asyncio

import pytest

from gateway.domain.errors import AdmissionTimeout, ClientTimeoutPassed, NoWorker, Overloaded, TargetMissed
from gateway.domain.token_usage import ChargedTokens
from gateway.queueing.shared.keys import BATCH as BATCH_QUEUE
from gateway.quotas.limit import concurrency
from policies.latency_model import PrefillFit, predicted_ttft_ms
from policies.queueing.estimate_ages import AGE_SECONDS
from policies.service_class import BATCH, CHAT, CODE, VOICE
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import (
    SPACE,
    DispatchStage,
    prompt_of,
    tenant,
    until_idle,
    with_class,
    with_limits,
)
from workers.adapter import FailureKind, WorkerFailed
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
        request.failed_workers[WorkerId(name)] = WorkerFailed("gone")


def learnt_as(stage, name, ms_per_token):
    """Let a worker be known to take this long for a token."""
    worker = stage.worker(name)
    for _ in range(200):
        for tokens in (100, 1000):
            stage.fleet.learn_first_token(worker, tokens=tokens, ttft_ms=ms_per_token * tokens)


def end(stage, request, placement):
    stage.acquisition.end_and_correct(request, None, lambda change: stage.placements.end(placement, change))


# Slots.


async def test_a_tenant_with_most_of_the_work_leaves_slots_of_an_engine_to_others():
    stage = DispatchStage("a", limits=with_limits(hold=0.1), passed_over_max=4)
    worker = stage.worker("a")
    learnt_as(stage, "a", ms_per_token=1.0)  # Twice 640 tokens take longer than the target.
    worker.known_slots = 2
    for name in ("victim", "flood", "flood"):
        placed = await acquire(stage, tenant=tenant(name))
        stage.placements.end(placed, 0.0)
    worker.load.streams += 1
    waiting = acquire(stage, tenant=tenant("flood"))
    await until_idle()
    assert not waiting.done()
    assert (await acquire(stage, tenant=tenant("victim"))).worker.id == "a"
    waiting.cancel()


async def test_a_burst_that_waits_crowds_out_others_though_nothing_more_comes_of_it():
    stage = full("a")
    burst = [acquire(stage, tenant=tenant("flood")) for _ in range(4)]
    await until_idle()
    stage.clock.advance(60.0)
    for waiting in burst[:2]:
        stage.free("a")
        await waiting
    burst.append(acquire(stage, tenant=tenant("victim")))
    await until_idle()
    stage.clock.advance(1.0)
    assert stage.window.of("m").contended
    for waiting in burst:
        waiting.cancel()


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
        stage.rooms.give_turns()
    assert placed == [[True, False, False], [True, True, False], [True, True, True]]


async def test_a_later_request_does_not_take_the_room_that_an_earlier_one_waits_for():
    stage = full("a")
    first = acquire(stage)
    await until_idle()
    stage.worker("a").load.tokens_queued = 0
    second = acquire(stage)
    await until_idle()
    assert not second.done()
    stage.rooms.give_turns()
    assert (await first).worker.id == "a"
    second.cancel()


async def test_a_prompt_of_which_nothing_is_known_is_ranked_once_behind_others_that_wait():
    stage = full("a")
    first = acquire(stage)
    await until_idle()
    ranked = stage.policy.ranked
    second = acquire(stage)
    await until_idle()
    assert stage.policy.ranked == ranked
    stage.free("a")
    stage.placements.end(await first, 0.0)
    stage.rooms.give_turns()
    assert (await second).worker.id == "a"
    assert stage.policy.ranked == ranked + 2  # Each of the two in its turn.


async def test_a_prompt_that_a_worker_holds_is_ranked_on_arrival_behind_others_that_wait():
    stage = full("a", "b")
    first = acquire(stage)
    await until_idle()
    request, ranked = stage.pending(), stage.policy.ranked
    stage.index.confirm(SPACE, request.prompt.hashes[:9], WorkerId("b"))
    stage.policy.costs = {"a": 50.0, "b": 20.0}
    second = acquire(stage, request=request)
    await until_idle()
    assert (stage.policy.ranked, request.ticket.cached_tokens, request.ticket.worker) == (
        ranked + 1,
        576,
        "b",
    )
    first.cancel()
    second.cancel()


async def test_a_request_whose_prefix_was_computed_while_it_waited_is_charged_what_is_left_to_compute():
    stage = full("a")
    request = stage.pending()
    waiting = acquire(stage, request=request)
    await until_idle()
    on_arrival = request.ticket
    stage.index.confirm(SPACE, request.prompt.hashes[:9], WorkerId("a"))
    stage.clock.advance(2 * AGE_SECONDS)
    stage.free("a")
    await waiting
    assert (on_arrival.uncached_tokens, request.ticket.uncached_tokens) == (640, 64)
    assert request.charged_units == request.ticket.cost < on_arrival.cost


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
    stage.rooms.give_turns()
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
    stage = DispatchStage("a", "b", limits=with_limits(hold=0.1), passed_over_max=4)
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


async def test_the_ticket_has_the_cost_of_the_request(stage):
    prompt = prompt_of(640)
    stage.index.confirm(SPACE, prompt.hashes, WorkerId("a"))
    request = stage.pending(stage.context(), prompt)
    await acquire(stage, request=request)
    ticket = request.ticket
    assert (ticket.uncached_tokens, ticket.cached_tokens, ticket.worker) == (64, 576, "a")
    assert request.charged_units == ticket.cost == 64 + 0.1 * 576 + 2.0 * request.output_tokens


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
    assert (request.service_class, request.queue_name) == (BATCH, f"m{BATCH_QUEUE}")
    assert placement.worker.id == "a"


async def test_a_request_that_waits_past_its_target_is_demoted_and_waits_on():
    stage = full("a")
    request = stage.pending(stage.context(with_class(CHAT, late="demote", ttft_seconds=0.01)))
    waiting = acquire(stage, request=request)
    async with asyncio.timeout(60):
        while request.service_class is not BATCH:
            await asyncio.sleep(0.005)
    await until_idle()
    assert not waiting.done()
    stage.free("a")
    assert (await waiting).worker.id == "a"


async def test_a_request_whose_client_will_be_gone_is_not_sent(stage):
    for name in ("a", "b"):
        learnt_as(stage, name, 10.0)
    with pytest.raises(ClientTimeoutPassed):
        await acquire(stage, expires_at=stage.clock() + 0.1)


async def test_a_request_whose_client_leaves_while_it_waits_is_let_go():
    stage = full("a")
    with pytest.raises(ClientTimeoutPassed):
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


async def test_with_room_here_no_provider_gets_a_call():
    stage = with_provider()
    assert (await acquire(stage, tenant=CONSENTS)).worker.id == "a"


async def test_without_a_worker_here_the_provider_gets_the_call_at_once():
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


async def test_without_a_worker_a_resting_provider_determines_retry_after():
    stage = with_provider()
    for name in ("a", "b"):
        stage.fleet.drain(WorkerId(name))
    stage.fleet.rest(WorkerId("cloud"), 20.0)
    with pytest.raises(Overloaded) as refusal:
        await acquire(stage, tenant=CONSENTS)
    assert refusal.value.retry_after_seconds == 20.0


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
    stage.rooms.give_turns()
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


# The charge in the queue.


async def test_a_tenant_is_charged_in_the_queue_for_what_was_used(stage):
    request = stage.pending()
    placement = await acquire(stage, request=request)
    changes = []
    used = ChargedTokens(prompt_tokens=640, cached_tokens=600, output_tokens=3)
    estimate = request.charged_units
    stage.acquisition.end_and_correct(
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
        stage.acquisition.end_and_correct(request, used, lambda change: bool(changes.append(change)))
    assert changes[1] == 0.0


async def test_a_failure_of_another_kind_leaves_the_worker_out_of_the_ranking(stage):
    request = stage.pending()
    request.failed_workers[WorkerId("a")] = WorkerFailed("busy", failure=FailureKind.BUSY)
    assert (await acquire(stage, request=request)).worker.id == "b"
