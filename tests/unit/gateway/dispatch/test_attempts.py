"""The attempts of a request: their workers, their reports, and that every ending frees everything."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from gateway.dispatch.hedging import Hedging
from gateway.dispatch.preemption import PREEMPTIONS_MAX
from gateway.domain.errors import NoWorker, Overloaded, WorkerError, WorkerTimeout
from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.quotas.limit import REQUESTS, Limit, Scope, concurrency
from policies.admission.limit_windows import Window
from policies.admission.retry_budget import RetryBudget
from policies.admission.target_refusal import SAMPLES_MIN
from policies.service_class import BATCH, CHAT
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import (
    MODEL,
    SPACE,
    DispatchStage,
    inference,
    prompt_of,
    tenant,
    until_idle,
    with_limits,
)
from tests.fakes.stub_adapter import StubAnswer, streamed
from workers.adapter import FailureKind, StreamBroken, WorkerFailed
from workers.worker import Health, Role

UNHEALTHY = WorkerFailed("connection refused")
SERVER_ERROR = WorkerFailed("status 500", failure=FailureKind.SERVER_ERROR)
BUSY = WorkerFailed("status 503", failure=FailureKind.BUSY, retry_after_seconds=7.0)
REFUSED = WorkerFailed("status 401", failure=FailureKind.REFUSED)
SILENT = WorkerFailed("no first byte", timed_out=True)
BAD_REQUEST = StubAnswer(status=400, pieces=(b"{}",))
CONSENTS = tenant(may_overflow=True)


@pytest.fixture
def stage():
    return DispatchStage("a", "b", "c")


def calls(stage):
    """Return by worker how many requests were sent."""
    return {name: len(adapter.calls) for name, adapter in stage.adapters.items() if adapter.calls}


def held(stage, prompt, name="a"):
    """Return how many blocks of the prompt the index knows on a worker."""
    return stage.index.match(SPACE, prompt.hashes).confirmed.get(WorkerId(name), 0)


# Another worker.


async def test_a_request_is_answered_by_the_best_worker(stage):
    await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1}


@pytest.mark.parametrize("failure", [UNHEALTHY, SERVER_ERROR, BUSY, REFUSED])
async def test_a_failure_before_the_first_byte_sends_the_request_to_another_worker(stage, failure):
    stage.adapters["a"].next(failure)
    request = stage.pending()
    await stage.serve(request)
    assert calls(stage) == {"a": 1, "b": 1}
    assert (request.progress.worker, request.progress.attempts) == ("b", 2)


async def test_a_refusal_of_the_request_is_its_answer(stage):
    stage.adapters["a"].next(BAD_REQUEST)
    assert await stage.serve(stage.pending()) == b"{}"
    assert calls(stage) == {"a": 1}


async def test_an_answer_that_breaks_off_is_not_begun_again(stage):
    stage.adapters["a"].next(streamed(b"data: 1\n\n", error=StreamBroken("cut")))
    with pytest.raises(StreamBroken):
        await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1}


async def test_no_more_workers_are_tried_than_the_settings_allow():
    stage = DispatchStage("a", "b", "c", limits=with_limits(attempts_max=2))
    for name in "abc":
        stage.adapters[name].next(UNHEALTHY)
    with pytest.raises(WorkerError):
        await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1, "b": 1}


async def test_when_all_workers_have_failed_the_request_fails():
    stage = DispatchStage("a", "b")
    for name in "ab":
        stage.adapters[name].next(UNHEALTHY)
    with pytest.raises(WorkerError):
        await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1, "b": 1}


async def test_when_all_workers_are_busy_the_client_is_told_when_to_come_back(stage):
    for name in "abc":
        stage.adapters[name].next(BUSY)
    with pytest.raises(Overloaded) as refusal:
        await stage.serve(stage.pending())
    assert refusal.value.retry_after_seconds == 7.0


async def test_a_request_that_two_workers_failed_inside_over_is_not_sent_to_a_third(stage):
    for name in "ab":
        stage.adapters[name].next(SERVER_ERROR)
    with pytest.raises(WorkerError):
        await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1, "b": 1}


async def test_a_silent_worker_ends_the_request_at_once(stage):
    stage.adapters["a"].next(SILENT)
    with pytest.raises(WorkerTimeout):
        await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1}


async def test_without_retries_left_the_first_failure_is_the_answer():
    stage = DispatchStage("a", "b", retry_budget=RetryBudget(share=0.0, at_least=0, seconds=10.0))
    stage.adapters["a"].next(UNHEALTHY)
    with pytest.raises(WorkerError):
        await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1}
    assert stage.retry_budget.refused == 1


async def test_another_attempt_spends_a_retry(stage):
    stage.adapters["a"].next(UNHEALTHY)
    await stage.serve(stage.pending())
    assert stage.retry_budget.spent == 1


async def test_a_retry_for_which_there_is_no_worker_is_not_spent():
    stage = DispatchStage("a")
    stage.adapters["a"].next(UNHEALTHY)
    with pytest.raises(WorkerError):
        await stage.serve(stage.pending())
    assert stage.retry_budget.spent == 0


async def test_a_retry_needs_no_room(stage):
    stage.adapters["a"].next(UNHEALTHY)
    for name in "bc":
        stage.occupy(name)
    request = stage.pending()
    await stage.serve(request)
    assert request.progress.worker == "b"


async def test_a_request_without_any_worker_has_none(stage):
    for name in "abc":
        stage.fleet.drain(WorkerId(name))
    with pytest.raises(NoWorker):
        await stage.serve(stage.pending())


async def test_what_a_failed_attempt_sent_is_not_charged(stage):
    for name in "abc":
        stage.adapters[name].next(UNHEALTHY)
    request = stage.pending()
    with pytest.raises(WorkerError):
        await stage.serve(request)
    assert request.progress.charged is None


# Blame.


async def test_a_worker_that_cannot_be_reached_is_suspected(stage):
    stage.adapters["a"].next(UNHEALTHY)
    await stage.serve(stage.pending())
    assert stage.worker("a").health.health is Health.SUSPECT
    assert stage.worker("a").failures == 1


async def test_a_busy_worker_is_not_blamed(stage):
    stage.adapters["a"].next(BUSY)
    await stage.serve(stage.pending())
    assert (stage.worker("a").failures, stage.worker("a").health.health) == (0, Health.UP)


async def test_a_worker_that_failed_inside_is_blamed_once_another_has_answered(stage):
    stage.adapters["a"].next(SERVER_ERROR)
    await stage.serve(stage.pending())
    assert stage.worker("a").health.strain > 0


async def test_workers_that_failed_inside_over_a_request_that_none_answers_are_not_blamed(stage):
    for name in "ab":
        stage.adapters[name].next(SERVER_ERROR)
    with pytest.raises(WorkerError):
        await stage.serve(stage.pending())
    assert [stage.worker(name).health.strain for name in "ab"] == [0.0, 0.0]


async def test_a_worker_is_not_blamed_for_a_request_that_the_next_one_refuses(stage):
    stage.adapters["a"].next(SERVER_ERROR)
    stage.adapters["b"].next(BAD_REQUEST)
    await stage.serve(stage.pending())
    assert stage.worker("a").health.strain == 0.0


async def test_an_answer_that_breaks_off_counts_against_its_worker(stage):
    stage.adapters["a"].next(streamed(b"data: 1\n\n", error=StreamBroken("cut")))
    with pytest.raises(StreamBroken):
        await stage.serve(stage.pending())
    assert stage.worker("a").failures == 1


async def test_an_answer_makes_a_suspected_worker_sound_again(stage):
    worker = stage.worker("a")
    worker.health = worker.health.request_failed(0.0)
    await stage.serve(stage.pending())
    assert worker.health.health is Health.UP


async def test_a_failure_that_names_the_prefill_worker_of_a_pair_is_the_prefill_workers():
    stage = pair_stage()
    stage.adapters["p"].outcomes.appendleft(UNHEALTHY)
    request = stage.pending()
    await stage.serve(request)
    assert (stage.worker("p").failures, stage.worker("d").failures) == (1, 0)
    assert request.progress.worker == "d", "which serves alone, too"


# The index.


async def test_a_prompt_under_way_counts_as_cached_for_the_next_request(stage):
    stage.adapters["a"].silent()
    prompt = prompt_of()
    running = stage.begin(stage.pending(stage.context(), prompt))
    await until_idle()
    assert stage.index.match(SPACE, prompt.hashes).pending == {"a": 10}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert stage.index.match(SPACE, prompt.hashes).pending == {}


async def test_an_answered_prompt_is_cached_on_its_worker(stage):
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(), prompt))
    assert held(stage, prompt) == 10


@pytest.mark.parametrize("outcome", [UNHEALTHY, BAD_REQUEST])
async def test_a_prompt_that_was_not_answered_is_not_cached(stage, outcome):
    stage.adapters["a"].next(outcome)
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(), prompt))
    assert held(stage, prompt) == 0


async def test_a_tenant_over_its_share_of_the_index_leaves_nothing_there(stage):
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(tenant=tenant(cache_blocks_max=5)), prompt))
    assert held(stage, prompt) == 0
    assert stage.index_quota.unrecorded_paths == 1


async def test_blocks_that_a_worker_holds_do_not_count_against_a_tenants_share(stage):
    prompt = prompt_of()
    stage.index.confirm(SPACE, prompt.hashes[:6], WorkerId("b"))
    await stage.serve(stage.pending(stage.context(tenant=tenant(cache_blocks_max=5)), prompt))
    assert held(stage, prompt) == 10


async def test_a_prompt_at_a_provider_is_not_in_the_index():
    stage = provider_stage()
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(tenant=CONSENTS), prompt))
    assert held(stage, prompt, "cloud") == 0
    assert stage.index.stats().blocks == 0


async def test_the_prompt_of_a_pair_is_on_both_workers_once_it_is_answered():
    stage = pair_stage()
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(), prompt))
    assert (held(stage, prompt, "p"), held(stage, prompt, "d")) == (10, 10)


# Learning.


def reports(stage, monkeypatch, cached_tokens):
    monkeypatch.setattr("tests.fakes.dispatch_stage.USAGE", TokenUsage(640, 4, PromptDetails(cached_tokens)))


async def test_cached_blocks_that_the_index_did_not_know_are_learnt(stage, monkeypatch):
    reports(stage, monkeypatch, 256)
    await stage.serve(stage.pending())
    assert stage.reported == [("a", 4)]


async def test_cached_blocks_that_a_worker_has_lost_are_forgotten(stage, monkeypatch):
    longer = prompt_of(1280)
    await stage.serve(stage.pending(stage.context(), longer))
    assert held(stage, longer) == 20
    reports(stage, monkeypatch, 128)
    await stage.serve(stage.pending(stage.context(), prompt_of(640)))
    assert held(stage, longer) == 10


async def test_of_an_estimated_prompt_nothing_is_learnt(stage, monkeypatch):
    reports(stage, monkeypatch, 256)
    await stage.serve(stage.pending(stage.context(), prompt_of(exact=False)))
    assert stage.reported == []


async def test_the_first_token_of_a_stream_teaches_how_fast_its_worker_is(stage):
    await stage.serve(stage.pending())
    assert stage.worker("a").learnt.fit.samples == 1


async def test_the_first_tokens_of_an_unknown_worker_teach_at_once_and_those_of_a_known_one_at_the_end(stage):
    samples = []
    for _ in range(SAMPLES_MIN + 1):
        request = stage.pending()
        lease = await stage.reservations.reserve(request.ctx, request.prompt, request.progress)
        await stage.attempts.begin(request)
        answer = await stage.attempts.open(request, lease, partial(stage.worker_calls.make, request))
        stage.attempts.report_answer(request)
        begun = stage.worker("a").learnt.fit.samples
        async for _ in answer.chunks():
            pass
        await stage.attempts.close(request)
        stage.attempts.end(request)
        stage.reservations.settle(request.ctx, lease, request.progress, None)
        samples.append((begun, stage.worker("a").learnt.fit.samples))
    assert samples[:-1] == [(count, count) for count in range(1, SAMPLES_MIN + 1)]
    assert samples[-1] == (SAMPLES_MIN, SAMPLES_MIN + 1)


async def test_a_whole_answer_does_not_teach_how_fast_its_worker_is(stage):
    ctx = stage.context(request=inference(stream=False))
    await stage.serve(stage.pending(ctx))
    assert stage.worker("a").learnt.fit.samples == 0


async def test_of_a_provider_no_speed_is_learnt():
    stage = provider_stage()
    await stage.serve(stage.pending(stage.context(tenant=CONSENTS)))
    assert stage.worker("cloud").learnt.fit.samples == 0


async def test_a_stream_that_has_begun_is_reported_once_and_at_its_end_at_the_latest(stage, monkeypatch):
    reported = []
    answered = stage.attempts.reports.answered
    monkeypatch.setattr(
        stage.attempts.reports, "answered", lambda *each: (reported.append(each), answered(*each))
    )
    request = stage.pending()
    lease = await stage.reservations.reserve(request.ctx, request.prompt, request.progress)
    await stage.attempts.begin(request)
    await stage.attempts.open(request, lease, partial(stage.worker_calls.make, request))
    assert reported == []  # The client gets its first bytes before that.
    await stage.attempts.close(request)
    stage.attempts.report_answer(request)
    assert len(reported) == 1
    stage.attempts.end(request)
    stage.reservations.settle(request.ctx, lease, request.progress, None)


async def test_the_index_counts_a_prompt_before_another_request_is_ranked(stage):
    """The worker's first byte is not waited for: the next request with this prompt may come before that."""
    stage.adapters["a"].silent()
    request = stage.pending()
    task = stage.begin(request)
    await until_idle()
    match = stage.index.match(request.prompt.namespace, request.prompt.hashes)
    assert match.pending == {WorkerId("a"): len(request.prompt.hashes)}
    task.cancel()
    await until_idle()
    assert not stage.index.match(request.prompt.namespace, request.prompt.hashes).pending


async def test_the_first_token_makes_room_for_a_waiting_request():
    stage = DispatchStage("a")
    first, until = stage.adapters["a"].silent(), asyncio.Event()
    answering = stage.begin()
    await until_idle()
    waiting = stage.begin()
    await until_idle()
    assert calls(stage) == {"a": 1}
    first.set_result(streamed(b"data: 1\n\n", b"data: 2\n\n", until=until))
    await waiting
    assert not answering.done()
    until.set()
    await answering


# Providers.


def provider_stage(**terms):
    """Return a stage on which a provider is the only worker that is up."""
    stage = DispatchStage("a")
    stage.fleet.drain(WorkerId("a"))
    stage.provider(**terms)
    return stage


async def test_after_failures_here_a_provider_answers():
    stage = DispatchStage("a")
    stage.provider()
    stage.adapters["a"].next(UNHEALTHY)
    request = stage.pending(stage.context(tenant=CONSENTS))
    await stage.serve(request)
    assert request.progress.worker == "cloud"


async def test_the_last_attempt_is_a_providers():
    stage = DispatchStage("a", "b", "c", limits=with_limits(attempts_max=2))
    stage.provider()
    stage.adapters["a"].next(UNHEALTHY)
    await stage.serve(stage.pending(stage.context(tenant=CONSENTS)))
    assert calls(stage) == {"a": 1, "cloud": 1}


async def test_after_a_provider_failed_the_failure_is_the_answer_where_no_worker_is_up():
    stage = provider_stage()
    stage.adapters["cloud"].next(BUSY)
    with pytest.raises(Overloaded) as refusal:
        await stage.serve(stage.pending(stage.context(tenant=CONSENTS)))
    assert refusal.value.retry_after_seconds == 7.0


async def test_a_failed_call_counts_as_one_request_at_the_provider():
    one_a_minute = Limit(unit=REQUESTS, amount=1, window=Window(seconds=60.0))
    stage = provider_stage(limits=(one_a_minute,))
    stage.adapters["cloud"].next(UNHEALTHY)
    with pytest.raises(WorkerError):
        await stage.serve(stage.pending(stage.context(tenant=CONSENTS)))
    with pytest.raises(Overloaded):
        await stage.serve(stage.pending(stage.context(tenant=CONSENTS)))
    assert calls(stage) == {"cloud": 1}


async def test_requests_that_fail_together_spend_no_more_than_the_budget(monkeypatch):
    one_retry = RetryBudget(share=0.0, at_least=1, seconds=10.0)
    stage = DispatchStage("a", retry_budget=one_retry, limits=with_limits(attempts_max=2))
    stage.provider()
    stage.adapters["a"].next(UNHEALTHY)
    stage.adapters["a"].next(UNHEALTHY)
    take = stage.overflow.take

    async def take_after_a_while(*given):
        await asyncio.sleep(0.01)
        return await take(*given)

    monkeypatch.setattr(stage.overflow, "take", take_after_a_while)
    requests = [stage.pending(stage.context(tenant=CONSENTS)) for _ in range(2)]
    results = await asyncio.gather(*map(stage.serve, requests), return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, Exception)] == [WorkerError]
    assert calls(stage) == {"a": 2, "cloud": 1}
    assert one_retry.spent == 1


# Hedging.


def hedged(*names, **options):
    """Return a stage on which a second worker gets a request that has no byte yet."""
    hedging = Hedging(enabled=True, after_seconds=0.0, prompt_tokens_max=10_000)
    return DispatchStage(*(names or ("a", "b", "c")), hedging=hedging, **options)


async def both_sent(stage, **context):
    """Begin a request that waits at two workers; return it, its task, and what the two are to answer."""
    first, second = stage.adapters["a"].silent(), stage.adapters["b"].silent()
    request = stage.pending(stage.context(**context))
    task = stage.begin(request)
    await until_idle()
    await asyncio.sleep(0.01)
    return request, task, first, second


async def test_a_request_without_a_first_byte_in_time_goes_to_a_second_worker():
    stage = hedged()
    request, task, first, _ = await both_sent(stage)
    assert calls(stage) == {"a": 1, "b": 1}
    assert request.hedged
    first.set_result(streamed())
    await task


async def test_where_the_first_worker_is_first_the_second_is_hung_up_on():
    stage = hedged()
    request, task, first, _ = await both_sent(stage)
    first.set_result(streamed())
    await task
    assert request.progress.worker == "a"
    assert stage.hedging.outcomes == {"lost": 1}
    assert stage.reserved() == {}


async def test_where_the_second_worker_is_first_it_answers():
    stage = hedged()
    request, task, _, second = await both_sent(stage)
    second.set_result(streamed())
    await task
    assert request.progress.worker == "b"
    assert stage.hedging.outcomes == {"won": 1}
    assert stage.reserved() == {}


async def test_the_worker_that_was_slower_does_not_count_as_holding_the_prompt():
    stage = hedged()
    request, task, _, second = await both_sent(stage)
    second.set_result(streamed())
    await task
    assert held(stage, request.prompt, "a") == 0


async def test_where_the_second_worker_refuses_the_first_one_answers():
    stage = hedged()
    request, task, first, second = await both_sent(stage)
    second.set_result(BAD_REQUEST)
    await until_idle()
    assert not task.done()
    first.set_result(streamed())
    await task
    assert request.progress.worker == "a"
    assert stage.hedging.outcomes == {"failed": 1}
    assert stage.reserved() == {}


async def test_where_the_second_worker_fails_the_first_one_answers():
    stage = hedged()
    request, task, first, second = await both_sent(stage)
    second.set_exception(UNHEALTHY)
    await until_idle()
    first.set_result(streamed())
    await task
    assert request.progress.worker == "a"
    assert stage.worker("b").failures == 1
    assert stage.hedging.outcomes == {"failed": 1}


async def test_where_the_first_worker_fails_the_second_one_answers():
    stage = hedged()
    request, task, first, second = await both_sent(stage)
    first.set_exception(UNHEALTHY)
    await until_idle()
    second.set_result(streamed())
    await task
    assert (request.progress.worker, stage.worker("a").failures) == ("b", 1)
    assert stage.hedging.outcomes == {"won": 1}
    assert stage.reserved() == {}


async def test_where_both_fail_a_third_worker_is_tried_and_it_is_not_hedged_again():
    stage = hedged("a", "b", "c", "d")
    request, task, first, second = await both_sent(stage)
    first.set_exception(UNHEALTHY)
    second.set_exception(UNHEALTHY)
    await task
    assert request.progress.worker == "c"
    assert calls(stage) == {"a": 1, "b": 1, "c": 1}
    assert stage.hedging.outcomes == {"failed": 1}
    assert stage.reserved() == {}


async def test_where_the_first_worker_times_out_both_are_given_up():
    stage = hedged()
    _, task, first, _ = await both_sent(stage)
    first.set_exception(SILENT)
    with pytest.raises(WorkerTimeout):
        await task
    assert stage.reserved() == {}


async def test_where_the_client_leaves_both_are_hung_up_on():
    stage = hedged()
    _, task, _, _ = await both_sent(stage)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert stage.hedging.outcomes == {"left": 1}
    assert stage.reserved() == {}


async def test_a_second_attempt_spends_a_retry():
    stage = hedged()
    _, task, first, _ = await both_sent(stage)
    assert stage.retry_budget.spent == 1
    first.set_result(streamed())
    await task


async def begun(stage, request):
    """Begin a request at a first worker that stays silent; return where it was sent."""
    stage.adapters["a"].silent()
    task = stage.begin(request)
    await asyncio.sleep(0.01)
    sent = calls(stage)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return sent


async def test_a_whole_answer_is_not_hedged():
    stage = hedged()
    request = stage.pending(stage.context(request=inference(stream=False)))
    assert await begun(stage, request) == {"a": 1}


async def test_batch_work_is_not_hedged():
    stage = hedged()
    assert await begun(stage, stage.pending(stage.context(BATCH))) == {"a": 1}


async def test_a_long_prompt_is_not_hedged():
    stage = hedged()
    assert await begun(stage, stage.pending(stage.context(), prompt_of(12_800))) == {"a": 1}


async def test_a_request_that_its_tenants_limits_would_not_bear_twice_is_not_hedged():
    stage = hedged()
    once = tenant(scopes=(Scope(name="tenant:acme", limits=(concurrency(1),)),))
    assert await begun(stage, stage.pending(stage.context(tenant=once))) == {"a": 1}


async def test_without_retries_left_a_request_is_not_hedged():
    stage = hedged(retry_budget=RetryBudget(share=0.0, at_least=0, seconds=10.0))
    assert await begun(stage, stage.pending()) == {"a": 1}


async def test_without_room_on_a_second_worker_a_request_is_not_hedged():
    stage = hedged("a", "b")
    stage.occupy("b")
    assert await begun(stage, stage.pending()) == {"a": 1}


async def test_a_request_is_not_hedged_where_a_second_attempt_would_be_one_too_many():
    stage = hedged(limits=with_limits(attempts_max=1))
    assert await begun(stage, stage.pending()) == {"a": 1}


async def test_a_worker_of_unknown_speed_is_not_hedged_where_the_settings_name_no_time():
    stage = DispatchStage("a", "b", hedging=Hedging(enabled=True, prompt_tokens_max=10_000))
    assert await begun(stage, stage.pending()) == {"a": 1}


# Preemption.


def preemptible(*names):
    return DispatchStage(*(names or ("a",)), limits=with_limits(preempts=True))


async def silent_batch_work(stage, name="a"):
    """Begin batch work that waits for its first byte."""
    stage.adapters[name].silent()
    request = stage.pending(stage.context(BATCH))
    task = stage.begin(request)
    await until_idle()
    return request, task


async def test_batch_work_without_a_byte_gives_way_and_is_answered_later():
    stage = preemptible()
    request, task = await silent_batch_work(stage)
    urgent = stage.pending()
    await stage.serve(urgent)
    await task
    assert [call.id for call in stage.adapters["a"].calls] == [
        request.ctx.id,
        urgent.ctx.id,
        request.ctx.id,
    ]
    assert (stage.preemption.count, request.preemptions) == (1, 1)
    assert stage.reserved() == {}


async def test_what_a_preempted_request_was_charged_in_the_queue_is_given_back():
    stage = preemptible()
    request, task = await silent_batch_work(stage)
    charged = request.charged_units
    await stage.serve(stage.pending())
    await task
    used = request.limits.cost_weights.units(uncached_tokens=640, cached_tokens=0, output_tokens=4)
    assert charged > 0
    assert request.charged_units == used


async def test_batch_work_that_has_given_way_often_enough_keeps_its_place():
    stage = preemptible()
    for _ in range(PREEMPTIONS_MAX):
        stage.adapters["a"].next(asyncio.get_running_loop().create_future(), streamed())
    last = asyncio.get_running_loop().create_future()
    stage.adapters["a"].next(last)
    request = stage.pending(stage.context(BATCH))
    task = stage.begin(request)
    for _ in range(PREEMPTIONS_MAX):
        await until_idle()
        await stage.serve(stage.pending())
    await until_idle()
    urgent = stage.begin()
    await asyncio.sleep(0.01)
    assert (request.preemptions, urgent.done()) == (PREEMPTIONS_MAX, False)
    last.set_result(streamed())
    await asyncio.gather(task, urgent)
    assert stage.reserved() == {}


async def test_batch_work_whose_first_byte_has_come_is_not_cut_off():
    stage = preemptible()
    until = asyncio.Event()
    stage.adapters["a"].next(streamed(b"data: 1\n\n", b"data: 2\n\n", until=until))
    request = stage.pending(stage.context(BATCH))
    task = stage.begin(request)
    await until_idle()
    await stage.serve(stage.pending())
    until.set()
    assert await task == b"data: 1\n\ndata: 2\n\n"
    assert stage.preemption.count == 0


async def test_batch_work_whose_first_byte_comes_in_the_moment_of_preemption_is_answered():
    stage = preemptible()
    first = stage.adapters["a"].silent()
    task = stage.begin(stage.pending(stage.context(BATCH)))
    await until_idle()
    urgent = stage.begin()
    await asyncio.sleep(0)
    first.set_result(streamed())
    await asyncio.gather(task, urgent)
    assert stage.reserved() == {}


async def test_a_retry_of_batch_work_is_not_cut_off():
    stage = preemptible("a", "b")
    stage.occupy("b", 500)
    stage.adapters["a"].next(UNHEALTHY)
    retry = stage.adapters["b"].silent()
    task = stage.begin(stage.pending(stage.context(BATCH)))
    await until_idle()
    assert calls(stage) == {"a": 1, "b": 1}
    assert not stage.preemption._attempts
    retry.set_result(streamed())
    await task


# Every ending frees everything.


def pair_stage(kind="vllm"):
    """Return a stage on which a prefill worker and a decode worker serve requests together."""
    stage = DispatchStage("x")
    stage.fleet.remove(WorkerId("x"))
    stage.join("p", kind=kind, role=Role.PREFILL)
    stage.join("d", kind=kind, role=Role.DECODE)
    if kind == "vllm":
        stage.adapters["p"].next(StubAnswer(pieces=(b'{"kv_transfer_params":{"a":1}}',)))
    return stage


def shared_stage():
    stage = DispatchStage("a", "b", "c", shared=True)
    stage.queue.spares.extend([WorkerId("b"), WorkerId("c")])
    return stage


def shared_and_hedged():
    stage = hedged(shared=True)
    stage.queue.spares.append(WorkerId("b"))
    return stage


def with_overflow():
    stage = DispatchStage("a")
    stage.provider(limits=(concurrency(3),))
    return stage


def only_provider():
    return provider_stage(limits=(concurrency(3),))


STAGES = {
    "alone": lambda: DispatchStage("a", "b", "c"),
    "shared": shared_stage,
    "hedged": hedged,
    "hedged and shared": shared_and_hedged,
    "preemptible": lambda: preemptible("a", "b", "c"),
    "pair, one after the other": pair_stage,
    "pair, both at once": lambda: pair_stage("sglang"),
    "overflow": with_overflow,
    "only a provider": only_provider,
}
OUTCOMES = {
    "whole answer": lambda: StubAnswer(),
    "stream": streamed,
    "refusal": lambda: BAD_REQUEST,
    "unhealthy": lambda: UNHEALTHY,
    "server error": lambda: SERVER_ERROR,
    "busy": lambda: BUSY,
    "refused gateway": lambda: REFUSED,
    "timed out": lambda: SILENT,
    "breaks off": lambda: streamed(b"data: 1\n\n", error=StreamBroken("cut")),
    "a defect before the first byte": lambda: RuntimeError("a defect"),
    "a defect within the answer": lambda: streamed(b"data: 1\n\n", error=RuntimeError("a defect")),
    "silent until the client leaves": lambda: asyncio.get_running_loop().create_future(),
    "stuck until the client leaves": lambda: streamed(b"data: 1\n\n", b"", until=asyncio.Event()),
}


async def ended(stage, service_class, outcomes):
    """Serve one request, with an outcome for each call in the order of calls; in the end the client leaves."""
    left = list(outcomes)

    def scripted(adapter):
        stream = adapter.stream

        def next_stream(call):
            if not adapter.outcomes and left:
                adapter.next(left.pop(0)())
            return stream(call)

        adapter.stream = next_stream

    for adapter in stage.adapters.values():
        scripted(adapter)
    request = stage.pending(stage.context(service_class, tenant=CONSENTS))
    task = stage.begin(request)
    await until_idle()
    if not task.done():
        await asyncio.sleep(0.003)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_idle()


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("first", OUTCOMES)
async def test_every_ending_frees_everything(kind, first):
    for second in OUTCOMES:
        for service_class in (CHAT, BATCH):
            stage = STAGES[kind]()
            await ended(stage, service_class, [OUTCOMES[first], OUTCOMES[second], OUTCOMES["unhealthy"]])
            left = stage.reserved()
            if kind == "pair, both at once":
                left.pop("streams of p", None)  # The prefill worker's stream is read on for a while.
            assert left == {}, f"{first}, then {second}"


@pytest.mark.parametrize("kind", ["alone", "shared"])
async def test_a_client_that_leaves_while_its_keep_alive_ends_leaves_nothing(kind):
    stage = STAGES[kind]()
    request = stage.pending()
    left = asyncio.Event()

    class SlowToEnd:
        async def __aenter__(self):
            pass

        async def __aexit__(self, *_):
            left.set()
            await asyncio.sleep(3600)

    beginning = asyncio.ensure_future(stage.attempts.begin(request, SlowToEnd))
    await left.wait()
    beginning.cancel()
    await asyncio.gather(beginning, return_exceptions=True)
    assert stage.reserved() == {}


async def test_a_request_is_read_by_no_attempt_before_its_call_is_made(stage):
    lease = await stage.reservations.reserve(
        (request := stage.pending()).ctx, request.prompt, request.progress
    )
    await stage.attempts.begin(request)
    assert calls(stage) == {}
    await stage.attempts.open(request, lease, partial(stage.worker_calls.make, request))
    assert calls(stage) == {"a": 1}
    await stage.attempts.close(request)
    stage.attempts.end(request)
    stage.reservations.settle(request.ctx, lease, request.progress, None)
    assert stage.reserved() == {}


async def test_a_request_keeps_its_number_among_those_for_its_model(stage):
    other_model = stage.context(model=replace(MODEL, name="other"))
    made = [stage.pending(), stage.pending(), stage.pending(other_model), stage.pending()]
    assert [request.sequence for request in made] == [0, 1, 0, 2]
