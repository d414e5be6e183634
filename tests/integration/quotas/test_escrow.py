"""Quota in escrow through a whole gateway: requests in a row use it, and the rest is given back."""

import pytest
import redis

from tests.fakes.scripted_worker import ScriptedWorker

LIMITS = [
    {"requests": 1_000_000, "per": "month", "reset": "calendar"},
    {"total_tokens": 1_000_000_000, "per": "month", "reset": "calendar"},
]
TIMES = 12


@pytest.fixture
def held(valkey, tmp_path):
    """Requests that hold a place now, as Redis has it."""
    client = redis.Redis.from_url(valkey.url, decode_responses=True)

    def count():
        return sum(client.zcard(key) for key in client.scan_iter(f"{tmp_path.name}:*:running:*"))

    yield count
    client.close()


@pytest.mark.parametrize("escrow", [True, False], ids=["ahead", "asking"])
async def test_requests_in_a_row_find_their_quota_and_are_charged_what_they_used(
    gateway, held, tmp_path, escrow
):
    where = {"redis.prefix": tmp_path.name, "redis.escrow": escrow}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=LIMITS, concurrency=100, **where) as running,
    ):
        for _ in range(TIMES):
            worker.then(prompt_tokens=30, tokens=20)
            async with running.chat(max_tokens=64) as response:
                assert response.status == 200
                left = int(response.headers["x-ratelimit-remaining-requests"])
                assert 1_000_000 - 2 * TIMES < left < 1_000_000
        found = running.here.gateway.quotas.escrow.taken
        assert found > 0 if escrow else found == 0
        await running.until(lambda: running.idle and held() == 0)
        async with running.chat(max_tokens=1) as response:
            assert int(response.headers["x-ratelimit-remaining-requests"]) == 1_000_000 - TIMES - 1
            tokens = 1_000_000_000 - int(response.headers["x-ratelimit-remaining-tokens"])
        assert TIMES * 50 < tokens < TIMES * 50 + 30
    assert held() == 0


async def test_a_gateway_that_ends_leaves_nothing_reserved(gateway, held, tmp_path):
    where = {"redis.prefix": tmp_path.name}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=LIMITS, concurrency=100, **where) as running,
    ):
        for _ in range(5):
            async with running.chat() as response:
                await response.read()
    assert held() == 0
