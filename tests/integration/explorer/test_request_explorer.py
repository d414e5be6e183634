"""Finished requests in detail, as operators and tenants ask a serving gateway for them."""

import asyncio

import pytest

from tests.fakes.scripted_worker import ScriptedWorker

SLOW = {"telemetry.requests.slow_seconds": "0.000001"}
"""Every request is slow."""

PROMPT = "a very private question"


async def shown(running, identity, status=200):
    async with running.http.get(f"{running.admin}/admin/v1/requests/{identity}") as response:
        assert response.status == status
        return await response.json()


async def listed(running, query=""):
    async with running.http.get(f"{running.admin}/admin/v1/requests?{query}") as response:
        assert response.status == 200
        return (await response.json())["data"]


async def asked(running, status=200, **more):
    """Send a request and return the id of its answer."""
    async with running.chat(PROMPT, **more) as response:
        await response.read()
        assert response.status == status
        return response.headers["x-request-id"]


async def test_a_slow_request_shows_its_steps_its_ranking_and_its_limits(gateway):
    limits = [{"requests": 100, "per": "minute"}]
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other, limits=limits, **SLOW) as running:
            identity = await asked(running, stream=True)
            found = await shown(running, identity)
            assert (found["tenant"], found["model"], found["outcome"]) == ("acme", "m", "ok")
            assert found["slow"]
            assert {route["worker"] for route in found["ranking"]} == {"w0", "w1"}
            assert all(route["reason"] and "wait_ms" in route["terms"] for route in found["ranking"])
            assert found["ranking"][0]["worker"] == found["worker"]
            assert [step["name"] for step in found["steps"]][:1] == ["prepare"]
            assert sum(step["ms"] for step in found["steps"]) == pytest.approx(found["ms"], abs=5)
            (limit,) = [each for each in found["limits"] if "request" in each["limit"]]
            assert limit["remaining"] == 99
            assert PROMPT not in str(await listed(running))


async def test_a_request_that_waited_has_the_reason_and_the_tenants_ahead(gateway):
    window = {"queueing.release_window_tokens": "1", **SLOW}
    async with ScriptedWorker() as worker, gateway(worker, **window) as running:
        gate = asyncio.Event()
        worker.then(until=gate)
        dispatch = running.here.gateway.services.dispatch
        first = asyncio.create_task(asked(running))
        await running.until(lambda: worker.seen)
        second = asyncio.create_task(asked(running, tenant="globex"))
        await running.until(lambda: sum(map(len, dispatch.rooms.all().values())) >= 1)
        third = asyncio.create_task(asked(running))
        await running.until(lambda: sum(map(len, dispatch.rooms.all().values())) >= 2)
        gate.set()
        await asyncio.gather(first, second)
        wait = (await shown(running, await third))["wait"]
        assert wait["requests_ahead"] == 1
        assert wait["tenants_ahead"] == {"globex": 1}
        assert wait["ms"] > 0
        assert wait["reason"]
        assert (await shown(running, first.result()))["wait"] is None


async def test_attempts_that_failed_are_named_with_their_cause(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as other:
        async with gateway(one, other) as running:
            one.then(status=500, body={"error": f"cannot do: {PROMPT}"})
            other.then(status=500, body={"error": f"cannot do: {PROMPT}"})
            identity = await asked(running, status=502)
            found = await shown(running, identity)
            assert found["outcome"] == "failed"
            assert {each["why"] for each in found["failed_attempts"]} == {"server_error"}
            assert {each["worker"] for each in found["failed_attempts"]} == {"w0", "w1"}
            assert [each["id"] for each in await listed(running, "failed=true")] == [identity]
            assert PROMPT not in str(found)


async def test_requests_of_all_gateways_are_found_at_each(gateway):
    async with ScriptedWorker() as worker:
        async with gateway(worker, **SLOW) as one, gateway(worker, **SLOW) as other:
            queue = one.here.gateway.services.dispatch.queue
            await one.until(lambda: queue.gateways == 2)
            first, second = await asked(one), await asked(other)
            assert (await shown(one, second))["id"] == second
            assert (await shown(other, first))["id"] == first
            assert [each["id"] for each in await listed(one)] == [second, first]
            await shown(one, "req-never-sent", status=404)


async def test_a_tenant_gets_its_own_requests_without_workers(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **SLOW) as running:
        mine, other = await asked(running), await asked(running, tenant="globex")

        async def own(path, status=200):
            url = f"{running.url}/v1/requests{path}"
            async with running.http.get(url, headers=running.headers("acme")) as response:
                assert response.status == status
                return await response.json()

        assert [each["id"] for each in (await own(""))["data"]] == [mine]
        found = await own(f"/{mine}")
        assert found["worker"] is None
        assert found["ranking"] == []
        await own(f"/{other}", status=404)
        await own("?tenant=globex", status=400)
        await own("?limit=0", status=400)
        async with running.http.get(f"{running.url}/v1/requests") as response:
            assert response.status == 401


async def test_a_gateway_that_keeps_no_requests_answers_so(gateway):
    settings = {"telemetry.requests.kept_max": "0"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        identity = await asked(running)
        assert "kept_max" in (await shown(running, identity, status=404))["detail"]


async def test_unknown_query_parameters_are_refused(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.http.get(f"{running.admin}/admin/v1/requests?slowest=1") as response:
            assert response.status == 400
            assert "slowest" in (await response.json())["detail"]
