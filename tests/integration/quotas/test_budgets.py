"""Budgets, prices, shadow limits, idempotency keys, and limits without Redis, through a whole gateway."""

import json
import time
from datetime import UTC, datetime

import pytest

from policies.admission.limit_windows import calendar_end
from tests.fakes.scripted_worker import ScriptedWorker

PRICED = json.dumps([{"name": "m", "prices": {"input": 2.0, "cached_input": 0.5, "output": 10.0}}])


async def answer(running, **more):
    """Status, error and headers of one chat."""
    headers = more.pop("headers", {})
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **more}
    sent = running.http.post(
        f"{running.url}/v1/chat/completions", json=body, headers={**running.headers(), **headers}
    )
    async with sent as response:
        found = await response.json()
    await running.settled()
    return response.status, found.get("error"), response.headers


async def test_money_is_spent_by_the_prices_of_the_model_and_cached_tokens_are_cheaper(gateway, valkey):
    limits = [{"spend": 0.001, "per": "month", "reset": "calendar"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, models=PRICED) as running:
        records = []
        worker.then(prompt_tokens=100, cached_tokens=60, tokens=30)
        observed = running.here.gateway.services.dispatch.reservations.leases.end

        def end(lease, cost):
            records.append(cost)
            observed(lease, cost)

        running.here.gateway.services.dispatch.reservations.leases.end = end
        status, _, _ = await answer(running, max_tokens=30)
        assert status == 200
        # 40 x 2 + 60 x 0.5 + 30 x 10, in millionths.
        assert [cost.spend for cost in records] == [410]
        # 590 are left: enough for 58 tokens of an answer and a short prompt, and not for 59.
        status, error, headers = await answer(running, max_tokens=59)
    assert (status, error["code"], error["type"]) == (429, "insufficient_quota", "insufficient_quota")
    assert headers["x-should-retry"] == "false"
    assert headers["x-radixgate-limit"] == "tenant:acme; spend/calendar month"
    month = calendar_end("month", time.time()) - time.time()
    assert int(headers["retry-after"]) == pytest.approx(month, abs=60)
    assert error["message"].startswith("The budget of 0.001 of spend per calendar month of tenant 'acme'")


async def test_limits_by_kind_of_token_are_settled_by_what_was_cached(gateway):
    limits = [{"input_tokens": 1000, "per": "day"}, {"output_tokens": 500, "per": "day", "reset": "rolling"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        worker.then(prompt_tokens=200, cached_tokens=190, tokens=4)
        await answer(running, max_tokens=100)
        _, _, headers = await answer(running, max_tokens=480)
        assert headers["x-ratelimit-limit-tokens"] == "500"
        assert headers["x-ratelimit-remaining-tokens"] == str(500 - 4 - 480)
        status, error, headers = await answer(running, max_tokens=495)
        assert (status, error["code"]) == (429, "insufficient_quota")
        assert headers["x-radixgate-limit"] == "tenant:acme; output_tokens/rolling day"
        assert headers["x-ratelimit-remaining-tokens"] == str(500 - 8)


async def test_a_limit_for_some_models_leaves_the_others_alone(gateway):
    limits = [{"requests": 1, "per": "day", "models": ["small-*"]}]
    async with ScriptedWorker(models=["m", "small-1"]) as worker, gateway(worker, limits=limits) as running:
        statuses = [(await answer(running, model=model))[0] for model in ("small-1", "m", "m")]
        status, error, headers = await answer(running, model="small-1")
    assert (statuses, status) == ([200, 200, 200], 429)
    assert "1 request per day for the models small-* of tenant 'acme'" in error["message"]
    assert headers["x-radixgate-limit"] == "tenant:acme; requests/day/small-*"


async def test_a_limit_in_shadow_is_counted_and_reported_and_refuses_no_request(gateway):
    limits = [{"requests": 1, "per": "day", "mode": "shadow"}, {"requests": 9, "per": "day", "alert_at": 0.2}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        told = []
        running.here.gateway.quotas.events.on_alert.append(told.append)
        for _ in range(3):
            status, _, headers = await answer(running)
            assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "9"
        async with running.http.get(running.admin + "/metrics") as response:
            metrics = await response.text()
    shadow = 'radixgate_quota_shadow_refusals_total{limit="requests (shadow)/day",scope="tenant:acme"} 2.0'
    assert shadow in metrics
    assert 'radixgate_quota_alerts_total{limit="requests/day",scope="tenant:acme"} 1.0' in metrics
    assert [(alert.tenant, alert.used) for alert in told] == [("acme", 2)]


async def test_a_tenant_has_limits_of_its_own_for_as_long_as_they_last(gateway):
    ends = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat(timespec="seconds")
    raised = {"limits": [{"requests": 3, "per": "day", "until": ends}]}
    tenants = {"acme": raised, "globex": {}}
    limits = [{"requests": 1, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, tenants=tenants) as running:
        statuses = [(await answer(running))[0] for _ in range(4)]
        async with running.chat(tenant="globex") as one, running.chat(tenant="globex") as two:
            assert sorted([one.status, two.status]) == [200, 429]
    assert statuses == [200, 200, 200, 429]


async def test_a_context_is_bounded_by_tenant_and_model_before_it_costs_anything(gateway):
    plan = {"context_lengths": [{"models": ["m"], "max": 50}], "context_length_max": 5000}
    tenants = {"acme": {}, "globex": {"context_lengths": [{"models": ["m"], "max": 100}]}}
    limits = [{"requests": 5, "per": "day"}]
    async with ScriptedWorker() as worker:
        async with gateway(worker, limits=limits, plan=plan, tenants=tenants) as running:
            await answer(running)
            assert worker.seen[-1].body["max_tokens"] < 50
            async with running.chat(tenant="globex") as response:
                await response.read()
            assert 50 <= worker.seen[-1].body["max_tokens"] < 100
            _, _, headers = await answer(running)
            assert headers["x-ratelimit-remaining-requests"] == "3"


async def test_each_attempt_under_an_idempotency_key_is_charged(gateway):
    limits = [{"requests": 5, "per": "day"}, {"total_tokens": 1000, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        worker.then(prompt_tokens=50, tokens=20)
        keyed = {"Idempotency-Key": "stainless-retry-1"}
        for _ in range(3):
            assert (await answer(running, headers=keyed, max_tokens=20))[0] == 200
        status, error, headers = await answer(running, headers=keyed, max_tokens=20)
        assert (status, error["code"], headers["x-should-retry"]) == (422, "idempotency_key_reused", "false")
        status, error, _ = await answer(running, headers=keyed, max_tokens=21)
        assert (status, error["message"]) == (422, "This Idempotency-Key was used for another request.")
        _, _, headers = await answer(running, max_tokens=1)
        assert headers["x-ratelimit-remaining-requests"] == "1"
        assert 760 < int(headers["x-ratelimit-remaining-tokens"]) + 1 <= 790


async def test_a_repeat_is_told_to_wait_while_the_first_is_answered(gateway):
    limits = [{"requests": 5, "per": "day"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits) as running:
        worker.then(gap=0.2, tokens=3)
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        url, headers = f"{running.url}/v1/chat/completions", {**running.headers(), "Idempotency-Key": "k"}
        async with running.http.post(url, json=body, headers=headers) as first:
            async with running.http.post(url, json=body, headers=headers) as second:
                error = (await second.json())["error"]
            assert (first.status, second.status, error["code"]) == (200, 409, "idempotency_key_in_use")
            assert int(second.headers["retry-after"]) == 1
            await first.read()


async def test_a_key_that_is_none_is_a_bad_request(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        status, error, _ = await answer(running, headers={"Idempotency-Key": "x" * 256})
        assert (status, error["code"]) == (400, "invalid_request")


async def test_without_redis_each_tenant_goes_on_or_is_refused_as_it_chose(gateway, own_valkey):
    tenants = {"acme": {"without_redis": "closed"}, "globex": {}}
    where = {"redis.url": own_valkey.url, "redis.timeout_ms": "200"}
    limits = [{"requests": 4, "per": "day"}]
    async with (
        ScriptedWorker() as worker,
        gateway(worker, limits=limits, tenants=tenants, **where) as running,
    ):
        assert (await answer(running))[0] == 200
        running.here.gateway.quotas.store._gateways = lambda: 2
        own_valkey.kill()
        status, error, headers = await answer(running)
        assert (status, error["code"], headers["retry-after"]) == (503, "quotas_unavailable", "1")
        statuses = []
        for _ in range(3):
            async with running.chat(tenant="globex") as response:
                await response.read()
                statuses.append(response.status)
        assert statuses == [200, 200, 429]
        own_valkey.start()
        await running.until(lambda: not running.here.gateway.quotas.store.away, 60)
        assert (await answer(running))[0] == 200


async def test_a_group_that_has_its_share_of_the_index_gets_no_more_of_it(gateway):
    models = json.dumps([{"name": "m", "block_size": 4}])
    tenants = {"acme": {"cache_blocks_max": 12}, "globex": {}}
    async with ScriptedWorker() as worker, gateway(worker, tenants=tenants, models=models) as running:
        shares = running.here.gateway.services.dispatch.index_quota
        for tenant in ("acme", "globex"):
            for number in range(6):
                async with running.chat(f"{number} " + "x" * 60, tenant=tenant) as response:
                    await response.read()
            await running.until(lambda: running.idle)
        await running.until(lambda: shares.blocks_by_group().get("tenant:globex", 0) > 20)
        assert shares.blocks_by_group().get("tenant:acme", 0) <= 12
        assert shares.unrecorded_paths > 0
