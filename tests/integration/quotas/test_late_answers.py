"""Late answers of Redis do not count as its loss: quotas stay shared while the server or this process is slow."""

import asyncio
import signal
import time

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

LIMITS = [{"total_tokens": 1_000_000, "per": "day"}]


@pytest.fixture
async def running(gateway, own_valkey):
    where = {"redis.url": own_valkey.url, "redis.timeout_ms": "200", "redis.escrow": "false"}
    async with ScriptedWorker() as worker, gateway(worker, limits=LIMITS, **where) as running:
        assert await chat(running) == 200
        yield running


def stall(server, seconds):
    server.signal(signal.SIGSTOP)
    asyncio.get_running_loop().call_later(seconds, server.signal, signal.SIGCONT)


async def chat(running):
    async with running.chat(max_tokens=4) as response:
        await response.read()
        return response.status


async def watched(running, calls):
    """Return the statuses of requests, and whether Redis was taken for away meanwhile."""
    store, went_away = running.here.gateway.quotas.store, False
    waiting = asyncio.ensure_future(asyncio.gather(*calls))
    while not waiting.done():
        went_away |= store.away
        await asyncio.sleep(0.005)
    return await waiting, went_away or store.away


async def test_many_requests_that_wait_for_one_late_answer_are_no_loss_of_redis(running, own_valkey):
    store = running.here.gateway.quotas.store
    stall(own_valkey, 0.3)
    statuses, went_away = await watched(running, [chat(running) for _ in range(12)])
    assert set(statuses) == {200}
    assert not went_away
    # They did not wait for the answer, which came later, and was undone.
    assert store.local_decisions > 0
    await running.settled()


async def test_an_event_loop_that_is_late_is_no_loss_of_redis(running):
    async def hold_up():
        for _ in range(3):
            await asyncio.sleep(0.02)
            time.sleep(0.45)  # noqa: ASYNC251

    statuses, went_away = await watched(running, [*(chat(running) for _ in range(12)), hold_up()])
    assert set(statuses) == {200, None}
    assert not went_away


async def test_a_redis_that_is_silent_is_away(running, own_valkey):
    store = running.here.gateway.quotas.store
    stall(own_valkey, 3.0)
    for _ in range(4):
        assert await chat(running) == 200
    assert store.away
    await running.until(lambda: not store.away)
