"""The attempts of a request: that every ending frees everything, on every kind of stage."""

import asyncio
from dataclasses import replace

import pytest

from gateway.quotas.limit import concurrency
from policies.service_class import BATCH, CHAT
from radix_cache.match import WorkerId
from tests.fakes.attempt_outcomes import (
    BAD_REQUEST,
    BUSY,
    CONSENTS,
    REFUSED,
    SERVER_ERROR,
    SILENT,
    UNHEALTHY,
    calls,
    hedged,
    pair_stage,
    preemptible,
    provider_stage,
)
from tests.fakes.dispatch_stage import (
    MODEL,
    DispatchStage,
    until_idle,
)
from tests.fakes.stub_adapter import StubAnswer, streamed
from workers.adapter import StreamBroken


@pytest.fixture
def stage():
    return DispatchStage("a", "b", "c")


async def test_a_request_is_answered_by_the_best_worker(stage):
    await stage.serve(stage.pending())
    assert calls(stage) == {"a": 1}


async def test_a_refusal_of_the_request_is_its_answer(stage):
    stage.adapters["a"].next(BAD_REQUEST)
    assert await stage.serve(stage.pending()) == b"{}"
    assert calls(stage) == {"a": 1}


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
    await stage.attempts.open(request, lease)
    assert calls(stage) == {"a": 1}
    await stage.attempts.close(request)
    stage.attempts.end(request)
    stage.reservations.settle(request, lease)
    assert stage.reserved() == {}


async def test_an_answer_is_prepared_once_before_its_worker_has_answered(stage):
    lease = await stage.reservations.reserve(
        (request := stage.pending()).ctx, request.prompt, request.progress
    )
    await stage.attempts.begin(request)
    stage.adapters["a"].next(silence := asyncio.get_running_loop().create_future())
    prepared = []
    opening = asyncio.ensure_future(stage.attempts.open(request, lease, lambda: prepared.append("head")))
    await until_idle()
    assert prepared == ["head"]
    silence.set_result(StubAnswer())
    await opening
    assert prepared == ["head"]


async def test_a_request_keeps_its_number_among_those_for_its_model(stage):
    other_model = stage.context(model=replace(MODEL, name="other"))
    made = [stage.pending(), stage.pending(), stage.pending(other_model), stage.pending()]
    assert [request.sequence for request in made] == [0, 1, 0, 2]
