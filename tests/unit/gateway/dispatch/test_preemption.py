"""Preemption: which batch requests give up their placement, that none does in vain, and what becomes of them."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.dispatch.preemption import PREEMPTIONS_MAX, PreemptibleAttempt, Preemption
from gateway.fleet.loads import LoadShare
from gateway.fleet.worker import Worker
from gateway.queueing.shared.preemption_requests import Need
from policies.service_class import BATCH
from radix_cache.match import WorkerId
from tests.fakes.attempt_outcomes import (
    UNHEALTHY,
    calls,
    preemptible,
)
from tests.fakes.dispatch_stage import (
    until_idle,
)
from tests.fakes.stub_adapter import streamed

WINDOW = 8192
W = WorkerId("w")


@pytest.fixture
def worker():
    return Worker(id=W, kind="test", adapter=None, models=frozenset({"m"}), models_fixed=True)


def sent(worker, tokens):
    return SimpleNamespace(
        prefill_worker=worker, load_share=LoadShare(worker.load, uncached_tokens=tokens, kv_tokens=tokens)
    )


def batch_work_at(worker, *sizes):
    preemption = Preemption()
    for tokens in sizes:
        preemption.add(PreemptibleAttempt(sent(worker, tokens)))
    return preemption


def test_the_last_that_was_sent_gives_way_where_that_is_enough(worker):
    among = batch_work_at(worker, 4000, 4000)
    assert among.can_make_room([Need(W, 4000, 8000, WINDOW)])
    assert not among.can_make_room([Need(W, 4000, 13_000, WINDOW)])


def test_no_request_gives_way_where_there_is_room(worker):
    assert not batch_work_at(worker, 2000).can_make_room([Need(W, 4000, 2000, WINDOW)])


def test_no_request_gives_way_where_what_is_left_would_be_too_much(worker):
    sent(worker, 8000)
    among = batch_work_at(worker, 2000)
    assert not among.can_make_room([Need(W, 7000, 10_000, WINDOW)])


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
