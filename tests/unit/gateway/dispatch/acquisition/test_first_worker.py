"""Requests for a model without workers wait for its first one, where its settings say so."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from gateway.domain.errors import ClientTimeoutPassed, NoWorker, Overloaded, ShuttingDown
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import MODEL, DispatchStage, until_idle
from workers.adapter import WorkerFailed

SCALED = replace(MODEL, first_worker_seconds_max=30.0)


def acquire(stage, **context):
    request = stage.pending(stage.context(**{"model": SCALED, **context}))
    return asyncio.ensure_future(stage.acquisition.acquire(request)), request


@pytest.fixture
def stage():
    stage = DispatchStage("other")
    stage.fleet.remove(WorkerId("other"))
    return stage


async def test_a_request_waits_for_the_first_worker_and_counts_as_waiting(stage):
    wait = stage.acquisition.first_worker
    task, request = acquire(stage)
    await until_idle()
    assert wait.counts() == Counter({("m", "chat"): 1})
    stage.join("elsewhere", models=("another",))
    wait.fleet_changed()
    await until_idle()
    assert not task.done()
    stage.join("first")
    wait.fleet_changed()
    assert (await task).worker.id == "first"
    assert not wait.counts()
    assert request.progress.queued_at is not None
    assert request.progress.queued_until is not None


async def test_without_the_setting_a_request_is_refused_at_once(stage):
    task, _ = acquire(stage, model=MODEL)
    with pytest.raises(NoWorker):
        await task


async def test_the_wait_ends_with_the_error_that_there_is_no_worker(stage):
    task, _ = acquire(stage, model=replace(MODEL, first_worker_seconds_max=0.01))
    with pytest.raises(NoWorker):
        await task
    assert not stage.acquisition.first_worker.counts()


async def test_the_wait_ends_with_the_client_s_own_timeout_if_that_is_sooner(stage):
    request = stage.pending(stage.context(model=SCALED, expires_at=stage.clock() + 0.01))
    with pytest.raises(ClientTimeoutPassed):
        await stage.acquisition.acquire(request)
    assert not stage.acquisition.first_worker.counts()


async def test_a_client_that_leaves_waits_no_more(stage):
    task, _ = acquire(stage)
    await until_idle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not stage.acquisition.first_worker.counts()


async def test_no_more_requests_wait_than_a_waiting_room_holds(stage):
    wait = stage.acquisition.first_worker
    room = stage.rooms.of("m")
    bounds = type(room.rules.bounds)(requests_max=2, tokens_max=10**6)
    room.reconfigure(replace(room.rules, bounds=bounds))
    tasks = [acquire(stage)[0] for _ in range(3)]
    with pytest.raises(Overloaded):
        await tasks[2]
    assert wait.counts().total() == 2
    wait.close(ShuttingDown())
    for task in tasks[:2]:
        with pytest.raises(ShuttingDown):
            await task
    late, _ = acquire(stage)
    with pytest.raises(ShuttingDown):
        await late


async def test_after_a_failure_no_first_worker_is_waited_for(stage):
    request = stage.pending(stage.context(model=SCALED))
    request.failed_workers[WorkerId("gone")] = WorkerFailed("gone")
    assert not await stage.acquisition.first_worker.wait(request, 100)
