"""Hedged requests: when a second worker is asked, which answer counts, and what is freed."""

import asyncio

import pytest

from gateway.dispatch.hedging import Hedging
from gateway.domain.errors import WorkerTimeout
from gateway.quotas.limit import Scope, concurrency
from policies.admission.retry_budget import RetryBudget
from policies.service_class import BATCH
from tests.fakes.attempt_outcomes import (
    BAD_REQUEST,
    SILENT,
    UNHEALTHY,
    calls,
    hedged,
    held,
)
from tests.fakes.dispatch_stage import (
    DispatchStage,
    inference,
    prompt_of,
    tenant,
    until_idle,
    with_limits,
)
from tests.fakes.stub_adapter import streamed


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
