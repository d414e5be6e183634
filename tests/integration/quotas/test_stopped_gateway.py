"""Quota after a gateway has stopped: what its requests used is charged, and nothing else."""

import asyncio
import signal

from gateway.quotas import failover_store
from tests.fakes.scripted_worker import ScriptedWorker

AMOUNT = 1_000_000
LIMITS = [{"requests": AMOUNT, "per": "month", "reset": "calendar"}]


async def chat(running):
    """Send a request, and return how many remain."""
    async with running.chat(max_tokens=4) as response:
        assert response.status == 200
        return int(response.headers["x-ratelimit-remaining-requests"])


async def used_before(gateway, worker, **where):
    """Return how many requests were charged, as a new gateway finds it in Redis."""
    async with gateway(worker, limits=LIMITS, **where) as running:
        return AMOUNT - await chat(running) - 1


async def test_requests_that_were_served_without_redis_are_charged_when_the_gateway_stops(
    gateway, own_valkey, monkeypatch
):
    """Redis is back when the gateway stops, and the gateway has not noticed that yet."""
    monkeypatch.setattr(failover_store, "PING_SECONDS", 3600.0)
    where = {"redis.url": own_valkey.url}
    async with ScriptedWorker() as worker:
        async with gateway(worker, limits=LIMITS, **where) as running:
            own_valkey.kill()
            for _ in range(5):
                await chat(running)
            own_valkey.start()
        assert await used_before(gateway, worker, **where) == 5


async def test_quota_reserved_ahead_is_given_back_when_the_gateway_stops_while_redis_is_silent(
    gateway, own_valkey
):
    where = {"redis.url": own_valkey.url}
    async with ScriptedWorker() as worker:
        async with gateway(worker, limits=LIMITS, **where) as running:
            for _ in range(8):
                await chat(running)
            assert running.here.gateway.quotas.escrow.taken > 0
            own_valkey.signal(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(1.0, own_valkey.signal, signal.SIGCONT)
        assert await used_before(gateway, worker, **where) == 8
