"""Batch work gives up its room for a request of another class."""

import asyncio

import pytest

from gateway.dispatch.acquisition.request_ranking import queued_request
from gateway.dispatch.preemption import PreemptibleAttempt
from policies.admission.dispatch_window import DispatchWindow
from policies.admission.filled_workers import FilledWorkers
from policies.service_class import BATCH, CHAT, VOICE
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import (
    DispatchStage,
    prompt_of,
    until_idle,
    with_limits,
)
from tests.unit.gateway.dispatch.acquisition.test_worker_acquisition import (
    acquire,
    full,
)


@pytest.fixture
def stage():
    return DispatchStage("a", "b")


def sent_batch_work(stage, name, tokens):
    """Let a batch request of so many tokens wait for its first byte on a worker."""
    request = stage.pending(stage.context(BATCH), prompt_of(tokens, first=77))
    request.ticket = stage.rooms.of(request.queue_name).ticket(queued_request(request, ()))
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


async def test_without_the_setting_batch_work_keeps_its_room():
    stage = DispatchStage("a")
    sent_batch_work(stage, "a", 960)
    assert await waiting_with(stage) == [False]


async def test_room_is_requested_of_other_gateways_where_this_one_has_no_batch_work():
    stage = DispatchStage("a", shared=True, limits=with_limits(preempts=True))
    stage.queue.room.clear()
    await waiting_with(stage)
    assert [(need.worker, need.tokens) for need in stage.needs.sent[0]] == [("a", 640)]


async def test_room_is_requested_in_the_windows_of_the_workers_that_the_request_may_wait_for():
    stage = DispatchStage("a", "b", shared=True, limits=with_limits(preempts=True))
    filled = FilledWorkers(last_open=WorkerId("a"), tokens=9000, patient_seconds=0.3)
    window = DispatchWindow(narrow=500, wide=1000, counts_own=True, filled=filled)
    stage.window.of_all_gateways.of = lambda model: window
    stage.queue.room.clear()
    await waiting_with(stage, service_class=CHAT)
    await waiting_with(stage, service_class=VOICE)
    asked = [[(need.worker, need.window) for need in needs] for needs in stage.needs.sent]
    assert [("b", 9000)] in asked  # A chat of 640 tokens is too long for the open worker.
    assert [("a", 1000)] in asked


async def test_a_gateway_that_is_alone_requests_room_of_no_other():
    stage = full("a", limits=with_limits(preempts=True))
    await waiting_with(stage)
    assert stage.needs.sent == []
