"""The reports of attempts: which worker is blamed for a failure, and what is learnt from an answer."""

import asyncio

import pytest

from gateway.domain.errors import WorkerError
from gateway.domain.token_usage import PromptDetails, TokenUsage
from policies.admission.ttft_chance import SAMPLES_MIN
from radix_cache.match import WorkerId
from tests.fakes.attempt_outcomes import (
    BAD_REQUEST,
    BUSY,
    CONSENTS,
    SERVER_ERROR,
    UNHEALTHY,
    calls,
    held,
    pair_stage,
    provider_stage,
)
from tests.fakes.dispatch_stage import (
    DispatchStage,
    inference,
    prompt_of,
    until_idle,
)
from tests.fakes.stub_adapter import streamed
from workers.adapter import StreamBroken
from workers.worker import Health


@pytest.fixture
def stage():
    return DispatchStage("a", "b", "c")


async def test_a_worker_that_cannot_be_reached_is_suspected(stage):
    stage.adapters["a"].next(UNHEALTHY)
    await stage.serve(stage.pending())
    assert stage.worker("a").health.state is Health.SUSPECT
    assert stage.worker("a").failures == 1


async def test_a_busy_worker_is_not_blamed(stage):
    stage.adapters["a"].next(BUSY)
    await stage.serve(stage.pending())
    assert (stage.worker("a").failures, stage.worker("a").health.state) == (0, Health.UP)


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
    assert worker.health.state is Health.UP


async def test_a_failure_that_names_the_prefill_worker_of_a_pair_is_the_prefill_workers():
    stage = pair_stage()
    stage.adapters["p"].outcomes.appendleft(UNHEALTHY)
    request = stage.pending()
    await stage.serve(request)
    assert (stage.worker("p").failures, stage.worker("d").failures) == (1, 0)
    assert request.progress.worker == "d", "which serves alone, too"


def reports(stage, monkeypatch, cached_tokens):
    monkeypatch.setattr("tests.fakes.dispatch_stage.USAGE", TokenUsage(640, 4, PromptDetails(cached_tokens)))


async def test_cached_blocks_that_the_index_did_not_have_are_learnt(stage, monkeypatch):
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
        answer = await stage.attempts.open(request, lease)
        stage.attempts.report_answer(request)
        begun = stage.worker("a").learnt.fit.samples
        async for _ in answer.chunks():
            pass
        await stage.attempts.close(request)
        stage.attempts.end(request)
        stage.reservations.settle(request, lease)
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
    await stage.attempts.open(request, lease)
    assert reported == []  # The client gets its first bytes before that.
    await stage.attempts.close(request)
    stage.attempts.report_answer(request)
    assert len(reported) == 1
    stage.attempts.end(request)
    stage.reservations.settle(request, lease)


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
