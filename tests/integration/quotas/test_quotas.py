"""Quotas through a whole gateway: what is granted and refused, and what the client is told."""

import asyncio

import pytest

from tests.fakes.scripted_worker import ScriptedWorker


async def test_requests_per_minute_are_exact_and_the_refusal_is_honest(gateway, redis_url):
    limits, where = [{"requests": 3, "per": "hour"}], {"redis.url": redis_url}
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **where) as running:
        remaining = []
        for _ in range(3):
            async with running.chat() as response:
                assert response.status == 200
                remaining.append(response.headers["x-ratelimit-remaining-requests"])
        async with running.chat() as response:
            error = (await response.json())["error"]
        assert remaining == ["2", "1", "0"]
        assert (response.status, error["code"], error["type"]) == (
            429,
            "rate_limit_exceeded",
            "rate_limit_error",
        )
        assert int(response.headers["retry-after"]) == pytest.approx(1200, abs=10)
        assert int(response.headers["retry-after-ms"]) == pytest.approx(1_200_000, abs=10_000)
        assert response.headers["x-ratelimit-limit-requests"] == "3"
        assert response.headers["x-ratelimit-remaining-requests"] == "0"
        assert response.headers["x-ratelimit-reset-requests"].endswith("s")
        assert response.headers["x-should-retry"] == "false"  # twenty minutes: no SDK is to sleep for so long
        assert "rg-" not in error["message"]
        assert len(worker.seen) == 3


async def test_a_client_that_waits_as_long_as_retry_after_gets_in(gateway):
    limits = [{"requests": 4, "per": "second"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        refused = list[int]()

        async def ask():
            async with running.chat() as response:
                if response.status == 429:
                    refused.append(int(response.headers["retry-after-ms"]))

        while not refused:
            await asyncio.gather(*(ask() for _ in range(8)))
        assert max(refused) <= 260
        await asyncio.sleep(max(refused) / 1000 + 0.01)
        async with running.chat() as response:
            assert response.status == 200


async def test_tokens_are_settled_to_what_was_used(gateway):
    limits = [{"total_tokens": 1000, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        worker.then(prompt_tokens=30, tokens=20)
        async with running.chat(stream=True, max_tokens=500) as response:
            reserved = int(response.headers["x-ratelimit-remaining-tokens"])
            await response.read()
        assert reserved < 500
        await running.settled()
        async with running.chat(max_tokens=1) as response:
            prompt = 950 - int(response.headers["x-ratelimit-remaining-tokens"])
        assert 0 < prompt < 30


async def test_a_request_that_never_fits_is_told_not_to_come_back(gateway):
    limits = [{"total_tokens": 100, "per": "minute"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        async with running.chat(max_tokens=500) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (429, "request_exceeds_limit")
        assert response.headers["x-should-retry"] == "false"
        assert "retry-after" not in response.headers


async def test_a_small_limit_does_not_refuse_what_may_be_a_short_answer(gateway):
    limits = [{"total_tokens": 60, "per": "minute"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        async with running.chat() as response:
            assert response.status == 200


async def test_concurrency_is_bounded_and_freed(gateway):
    async with ScriptedWorker() as worker, gateway(worker, concurrency=2) as running:
        worker.then(gap=0.2, tokens=3)
        first, second = running.chat(stream=True), running.chat(stream=True)
        async with first as one, second as two:
            async with running.chat() as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"]) == (429, "rate_limit_exceeded")
                assert error["message"] == (
                    "The limit of 2 requests at one time of tenant 'acme' is used up. Try again in 1 second."
                )
            async with running.chat(tenant="globex") as response:
                assert response.status == 200
            await one.read()
            await two.read()
        await running.settled()
        worker.then(gap=0.0)
        async with running.chat() as response:
            assert response.status == 200


async def test_one_tenant_does_not_use_up_another_ones_limit(gateway):
    limits = [{"requests": 1, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        statuses = []
        for tenant in ("acme", "acme", "globex"):
            async with running.chat(tenant=tenant) as response:
                statuses.append(response.status)
    assert statuses == [200, 429, 200]


async def test_choices_count_in_tokens(gateway):
    limits = [{"total_tokens": 1000, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        async with running.chat(max_tokens=100, n=20) as response:
            assert response.status == 429


async def test_a_refused_request_costs_nothing(gateway):
    limits = [{"requests": 10, "per": "day"}, {"total_tokens": 100, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        for _ in range(3):
            async with running.chat(max_tokens=500) as response:
                assert response.status == 429
        async with running.chat(max_tokens=5) as response:
            assert response.headers["x-ratelimit-remaining-requests"] == "9"


async def test_a_failure_of_the_workers_costs_nothing(gateway):
    limits = [{"requests": 10, "per": "day"}, {"total_tokens": 1000, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        worker.then(status=500)
        async with running.chat(max_tokens=100) as response:
            assert response.status == 502
        worker.then(status=200)
        await running.settled()
        async with running.chat(max_tokens=5) as response:
            assert response.headers["x-ratelimit-remaining-requests"] == "9"


async def test_two_gateways_share_one_limit(gateway):
    limits = [{"requests": 10, "per": "day"}]
    async with ScriptedWorker() as worker:
        async with gateway(worker, limits=limits) as one, gateway(worker, limits=limits) as two:

            async def ask(running):
                async with running.chat() as response:
                    await response.read()
                    return response.status

            statuses = await asyncio.gather(*(ask(running) for running in (one, two) for _ in range(10)))
    assert sorted(statuses) == [200] * 10 + [429] * 10


async def test_the_rest_of_each_limit_can_be_read_without_a_charge(gateway, redis_url):
    limits = [{"requests": 3, "per": "hour"}, {"total_tokens": 1000, "per": "day"}]
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=limits, concurrency=2, **{"redis.url": redis_url}) as running,
    ):

        async def left():
            async with running.http.get(f"{running.url}/v1/limits", headers=running.headers()) as response:
                found = (await response.json())["data"]
            assert {each["scope"] for each in found} == {"tenant:acme"}
            return {each["unit"]: each["remaining"] for each in found}

        assert await left() == {"requests": 3, "total_tokens": 1000, "concurrency": 2}
        release = asyncio.Event()
        worker.then(until=release, prompt_tokens=10, tokens=5)
        call = asyncio.create_task(running.chat(max_tokens=5).__aenter__())
        await running.until(lambda: worker.seen)
        held = await left()
        assert (held["requests"], held["concurrency"]) == (2, 1)
        release.set()
        async with await call as response:
            await response.read()
        await running.settled()
        assert await left() == await left() == {"requests": 2, "total_tokens": 985, "concurrency": 2}
        for _ in range(2):
            async with running.chat() as response:
                assert response.status == 200
        await running.settled()
        assert (await left())["requests"] == 0
        async with running.http.get(f"{running.url}/v1/limits") as response:
            assert response.status == 401
