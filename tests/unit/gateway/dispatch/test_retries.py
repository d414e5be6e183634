"""Retries: when a request is tried again, on which worker, and within which budget."""

import asyncio

import pytest

from gateway.domain.errors import NoWorker, Overloaded, WorkerError, WorkerTimeout
from gateway.quotas.limit import REQUESTS, Limit
from policies.admission.limit_windows import Window
from policies.admission.retry_budget import RetryBudget
from radix_cache.match import WorkerId
from tests.fakes.attempt_outcomes import (
    BUSY,
    CONSENTS,
    REFUSED,
    SERVER_ERROR,
    SILENT,
    UNHEALTHY,
    calls,
    provider_stage,
)
from tests.fakes.dispatch_stage import (
    DispatchStage,
    with_limits,
)
from tests.fakes.stub_adapter import streamed
from workers.adapter import StreamBroken


@pytest.fixture
def stage():
    return DispatchStage("a", "b", "c")


@pytest.mark.parametrize("failure", [UNHEALTHY, SERVER_ERROR, BUSY, REFUSED])
async def test_a_failure_before_the_first_byte_sends_the_request_to_another_worker(stage, failure):
    stage.adapters["a"].next(failure)
    request = stage.pending()
    await stage.serve(request)
    assert calls(stage) == {"a": 1, "b": 1}
    assert (request.progress.worker, request.progress.attempts) == ("b", 2)


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
