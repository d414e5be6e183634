"""Overflow to providers: which requests go there and when, their cost, and the data that are sent."""

import asyncio
import json

import pytest

from gateway.adminapi.route_explanation import RouteAsked, explain_route
from gateway.web.openai.inference_requests import decode_openai_request
from tests.fakes.scripted_worker import Script, ScriptedWorker
from tests.integration.queueing.test_shared_turns import nothing_is_left, together
from tests.integration.runtime.test_reference_cycles import left_by

CONSENTS = {"acme": {"overflow": "allow"}, "globex": {}}
PRICES = {"input": 1, "output": 2}
THEIRS = {"input": 10, "cached_input": 5, "output": 20}


def settings(here, provider, *more, after_ms=10, rules=None, **changes):
    """One worker of ours, and providers of its model, which they call otherwise. `rules`: of the providers."""
    providers = [
        {
            "id": f"p{at}",
            "kind": "openai",
            "url": one.url + "/v1",
            "provider": {
                "models": {"m": {"name": "their/m", "prices": prices}},
                "after_ms": after_ms,
                **(rules or {}),
            },
        }
        for at, (one, prices) in enumerate([(provider, THEIRS), *more])
    ]
    return {
        "workers": json.dumps([{"id": "w0", "kind": "sglang", "url": here.url}, *providers]),
        "models": json.dumps([{"name": "m", "aliases": ["gpt"], "prices": PRICES}]),
        "queueing.release_window_tokens": 1,
        **changes,
    }


async def asked(running, **more):
    async with running.chat(max_tokens=4, **more) as response:
        return response.status, await response.json()


async def full(running, here):
    """The worker of ours has a request that has no first token yet. Another one would have to wait."""
    here.then(until=asyncio.Event())
    call = asyncio.create_task(asked(running, tenant="globex", stream=False))
    await running.until(lambda: here.seen)
    return call


async def test_tenants_that_consent_go_over_where_no_worker_has_room_and_others_wait(gateway, records):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            first = await full(running, here)
            waits = asyncio.create_task(asked(running, tenant="globex"))
            status, _ = await asked(running)
            assert (status, len(theirs.seen), len(here.seen)) == (200, 1, 1)
            assert not waits.done()
            here.script.until.set()
            assert {(await call)[0] for call in (first, waits)} == {200}
            assert (len(theirs.seen), len(here.seen)) == (1, 2)
            await running.until(lambda: running.idle)
            over = next(record for record in records if record.worker == "p0")
            assert (over.tenant, over.attempts, over.predicted_tokens) == ("acme", 1, 0)
            assert over.route.reason == "overflow to a provider: no worker here had room in time"
            async with running.http.get(running.admin + "/metrics") as response:
                assert 'radixgate_worker_requests_total{worker="p0"} 1.0' in await response.text()


async def test_a_request_with_room_here_stays_here(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            for _ in range(3):
                assert (await asked(running))[0] == 200
            assert (len(here.seen), len(theirs.seen)) == (3, 0)


async def test_a_refusal_for_want_of_room_becomes_overflow_for_a_tenant_that_consents(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        bounds = {"queueing.waiting_seconds_max": "0.05"}
        async with gateway(tenants=CONSENTS, **settings(here, theirs, after_ms=60_000, **bounds)) as running:
            first = await full(running, here)
            assert (await asked(running, tenant="globex"))[0] == 503
            assert (await asked(running))[0] == 200
            assert len(theirs.seen) == 1
            here.script.until.set()
            await first


@pytest.mark.parametrize("stream", [True, False])
async def test_a_provider_serves_where_no_worker_is_up(gateway, stream):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            await here.stop()
            await running.until(lambda: running.here.gateway.fleet["w0"].health.state.value == "down", 60)
            async with running.chat(stream=stream) as response:
                assert response.status == 200
                await response.read()
            async with running.chat(tenant="globex", stream=stream) as response:
                assert response.status == 503
            assert len(theirs.seen) == 1


async def test_it_stands_in_where_a_worker_fails_before_the_first_byte(gateway, records):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            here.then(break_after=0)
            assert (await asked(running))[0] == 200
            assert (await asked(running, tenant="globex"))[0] == 502
            assert len(theirs.seen) == 1
            await running.until(lambda: running.idle)
            assert (records[0].worker, records[0].attempts) == ("p0", 2)


async def test_the_cheapest_provider_gets_the_call_and_the_next_one_where_it_fails(gateway):
    async with (
        ScriptedWorker() as here,
        ScriptedWorker(["their/m"]) as dear,
        ScriptedWorker(["their/m"]) as cheap,
    ):
        less = {"input": 2, "output": 3}
        async with gateway(tenants=CONSENTS, **settings(here, dear, (cheap, less))) as running:
            first = await full(running, here)
            assert (await asked(running))[0] == 200
            assert (len(dear.seen), len(cheap.seen)) == (0, 1)
            cheap.then(status=429)
            assert (await asked(running))[0] == 200
            assert (len(dear.seen), len(cheap.seen)) == (1, 2)
            here.script.until.set()
            await first


async def test_a_request_that_a_provider_fails_waits_here_and_overtakes_none(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            first = await full(running, here)
            theirs.then(status=429)
            second = asyncio.create_task(asked(running))
            await running.until(lambda: theirs.seen)
            await running.until(
                lambda: any(map(len, running.here.gateway.services.dispatch.rooms.all().values()))
            )
            assert len(here.seen) == 1
            here.script.until.set()
            assert [(await call)[0] for call in (first, second)] == [200, 200]
            assert len(here.seen) == 2
            await running.until(lambda: running.idle)


async def test_where_no_worker_is_up_the_client_gets_the_error_of_the_provider(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            running.here.gateway.fleet.drain("w0")
            theirs.then(status=500)
            assert (await asked(running))[1]["error"]["code"] == "worker_error"
            theirs.then(status=429, headers={"retry-after": "7"})
            async with running.chat() as response:
                assert (response.status, response.headers["retry-after"]) == (503, "7")
            await running.until(lambda: running.idle)


async def test_its_price_is_charged_and_settled(gateway, records):
    limits = [{"total_tokens": 100, "per": "day"}, {"spend": 10, "per": "day"}]
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, limits=limits, **settings(here, theirs)) as running:
            theirs.then(cached_tokens=4)
            assert (await asked(running))[0] == 200
            here.then(break_after=0)
            async with running.chat(max_tokens=4) as response:
                assert response.status == 200
            await running.until(lambda: running.idle)
            await running.until(lambda: len(records) == 2)
            # 10 prompt tokens, 4 of them cached there, and 4 of output.
            assert [record.spend for record in records] == [10 * 1 + 4 * 2, 6 * 10 + 4 * 5 + 4 * 20]
            here.then(break_after=None)
            async with running.chat(max_tokens=4) as response:
                assert int(response.headers["x-ratelimit-remaining-tokens"]) <= 100 - 2 * 14


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_leaves_that_identifies_the_client_and_the_answer_names_our_model(gateway, stream):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            here.then(break_after=0)
            theirs.then(more={"model": "their/m", "provider": "somebody"}, named="their/m")
            said = {
                "user": "jane",
                "metadata": {"team": "a"},
                "prompt_cache_key": "k",
                "service_tier": "auto",
            }
            said |= {"safety_identifier": "s", "cache_salt": "c", "temperature": 0.5, "priority": 3}
            said |= {
                "models": ["dear"],
                "provider": {"order": ["dear"]},
                "route": "fallback",
                "trace": {"a": "b"},
            }
            said |= {"plugins": [{"id": "web"}], "web_search_options": {}}
            trace = {
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "x-request-id": "mine",
            }
            body = {"model": "gpt", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **said}
            async with running.http.post(
                f"{running.url}/v1/chat/completions", json=body, headers={**running.headers(), **trace}
            ) as response:
                text = await response.text()
            assert response.status == 200
            assert ("their/m" in text, "somebody" in text, '"m"' in text) == (False, False, True)
            (seen,) = theirs.seen
            assert set(seen.body) <= {"model", "messages", "stream", "temperature", "stream_options"}
            assert seen.body["model"] == "their/m"
            assert "traceparent" not in seen.headers
            assert seen.headers["x-request-id"] not in ("mine", response.headers["x-request-id"])
            sent = json.dumps([seen.body, dict(seen.headers)])
            for word in ("acme", "globex", "jane", running.keys["acme"].text):
                assert word not in sent


async def test_nothing_of_its_cache_is_known_or_expected(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            here.then(break_after=0)
            theirs.then(cached_tokens=800, prompt_tokens=1000)
            for _ in range(2):
                assert (await asked(running, text="word " * 800))[0] == 200
            await running.until(lambda: running.idle)
            assert len(theirs.seen) == 2
            stats = running.here.gateway.services.dispatch.index.stats()
            assert (stats.blocks, stats.predictions) == (0, 0)


async def test_route_explains_why_a_provider_is_considered_or_not(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs, after_ms=200)) as running:
            at = running.here.gateway.services

            async def told(tenant):
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                found = await explain_route(at, decode_openai_request, RouteAsked(body=body, tenant=tenant))
                return [(worker.worker, worker.rank, worker.reason) for worker in found.workers]

            ours, provider = await told("acme")
            assert (ours[0], ours[1]) == ("w0", 1)
            why = "overflow to a provider: asked if no worker here takes the request within 200 ms"
            assert provider == ("p0", 2, why)
            ours, provider = await told("globex")
            assert provider == (
                "p0",
                None,
                "a provider, and globex has not consented to providers (overflow: deny)",
            )
            running.here.gateway.fleet.rest("p0", 30.0)
            assert (await told("acme"))[1] == (
                "p0",
                None,
                "a provider that asks for no requests for another 30 seconds (retry-after)",
            )


async def test_it_is_so_too_where_gateways_give_turns_together(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        rules = settings(here, theirs, after_ms=50)
        async with gateway(tenants=CONSENTS, **rules) as one, gateway(tenants=CONSENTS, **rules) as two:
            await together(one, two)
            first = await full(one, here)
            waits = asyncio.create_task(asked(two, tenant="globex"))
            assert (await asked(two))[0] == 200
            assert (len(theirs.seen), len(here.seen), waits.done()) == (1, 1, False)
            here.script.until.set()
            assert {(await call)[0] for call in (first, waits)} == {200}
            assert (len(theirs.seen), len(here.seen)) == (1, 2)
            await nothing_is_left(one, two)


@pytest.mark.parametrize("across", ["sfq", "priority"])
async def test_batch_work_waits_for_workers_here(gateway, across):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(
            tenants=CONSENTS, **settings(here, theirs, **{"queueing.across": across})
        ) as running:
            first = await full(running, here)
            rooms = running.here.gateway.services.dispatch.rooms.all
            second = asyncio.create_task(asked(running, service_tier="batch"))
            await running.until(lambda: any(map(len, rooms().values())))
            assert (await asked(running))[0] == 200
            assert (len(here.seen), len(theirs.seen), second.done()) == (1, 1, False)
            here.script.until.set()
            assert [(await call)[0] for call in (first, second)] == [200, 200]
            assert (len(here.seen), len(theirs.seen)) == (2, 1)


async def test_batch_work_that_failed_here_stays_with_the_workers_of_its_model(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            here.then(break_after=0)
            status, _ = await asked(running, service_tier="batch")
            assert (status, len(theirs.seen)) == (502, 0)
            assert (await asked(running))[0] == 200
            assert len(theirs.seen) == 1


def rests(running):
    fleet = running.here.gateway.fleet
    return [worker.id for worker in fleet if worker.rests_until > fleet.now()]


async def test_a_full_provider_gets_no_call_of_any_gateway_for_the_time_it_names(gateway):
    async with (
        ScriptedWorker() as here,
        ScriptedWorker(["their/m"]) as dear,
        ScriptedWorker(["their/m"]) as cheap,
    ):
        less = {"input": 2, "output": 3}
        rules = settings(here, dear, (cheap, less), rules={"rest_seconds_max": 600})
        async with gateway(tenants=CONSENTS, **rules) as one, gateway(tenants=CONSENTS, **rules) as two:
            for running in (one, two):
                running.here.gateway.fleet.drain("w0")
            cheap.then(status=429, headers={"retry-after": "3000"})
            assert (await asked(one))[0] == 200
            await two.until(lambda: rests(two) == ["p1"])
            assert rests(one) == ["p1"]
            for running in (one, two):
                fleet = running.here.gateway.fleet
                assert fleet["p1"].rests_until - fleet.now() <= 600
                assert (await asked(running))[0] == 200
            assert (len(dear.seen), len(cheap.seen)) == (3, 1)
            async with one.http.get(one.admin + "/metrics") as response:
                metrics = await response.text()
            assert 'radixgate_provider_resting{worker="p1"} 1.0' in metrics
            assert 'radixgate_provider_resting{worker="p0"} 0.0' in metrics
            assert 'radixgate_worker_failures_total{worker="p1"} 0.0' in metrics
            assert 'radixgate_worker_health{state="up",worker="p1"} 1.0' in metrics


async def test_a_provider_gets_calls_again_after_its_backoff(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        rules = settings(here, theirs, rules={"rest_seconds_max": 0.5})
        async with gateway(tenants=CONSENTS, **rules) as running:
            running.here.gateway.fleet.drain("w0")
            theirs.then(status=429, headers={"retry-after": "3000"})
            assert (await asked(running))[0] == 503
            theirs.then(status=200)
            await running.until(lambda: not rests(running))
            assert (await asked(running))[0] == 200
            assert len(theirs.seen) == 2


async def test_its_error_reaches_the_client_only_where_no_other_server_may_serve(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            running.here.gateway.fleet.drain("w0")
            theirs.then(status=429, headers={"retry-after": "50"})
            for _ in range(2):
                async with running.chat() as response:
                    body = await response.json()
                    assert (response.status, body["error"]["code"]) == (503, "overloaded")
                    assert 1 <= int(response.headers["retry-after"]) <= 50
            assert len(theirs.seen) == 1
            running.here.gateway.fleet.resume("w0")
            assert (await asked(running))[0] == 200
            assert (len(theirs.seen), len(here.seen)) == (1, 1)
            await running.until(lambda: running.idle)


async def test_another_model_stands_in_where_its_provider_rests(gateway):
    async with (
        ScriptedWorker() as here,
        ScriptedWorker(["their/m"]) as theirs,
        ScriptedWorker(["spare"]) as spare,
    ):
        rules = settings(here, theirs)
        workers = [*json.loads(rules["workers"]), {"id": "w1", "kind": "sglang", "url": spare.url}]
        rules["workers"] = json.dumps(workers)
        rules["models"] = json.dumps([{"name": "m", "fallbacks": ["spare"]}])
        async with gateway(tenants=CONSENTS, **rules) as running:
            running.here.gateway.fleet.drain("w0")
            theirs.then(status=429, headers={"retry-after": "50"})
            for _ in range(2):
                assert (await asked(running, model="m"))[0] == 200
            assert (len(theirs.seen), len(spare.seen)) == (1, 2)


async def test_a_request_that_waits_here_goes_over_when_the_backoff_of_the_provider_ends(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs)) as running:
            first = await full(running, here)
            running.here.gateway.fleet.rest("p0", 0.3)
            assert (await asked(running))[0] == 200
            assert (len(theirs.seen), len(here.seen), first.done()) == (1, 1, False)
            here.script.until.set()
            await first
            await running.until(lambda: running.idle)


LIMITED = {
    "at one time": {"concurrency": 1},
    "requests": {"limits": [{"requests": 1, "per": "hour"}]},
    "tokens": {"limits": [{"total_tokens": 20, "per": "hour"}]},
    "money": {"limits": [{"spend": 0.0003, "per": "month", "reset": "calendar"}]},
    "its model alone": {"limits": [{"requests": 1, "per": "hour", "models": ["m"]}]},
}
"""Each has room for one request: about 9 prompt tokens and 4 of output, at 10 and 20 for a million."""


def refused(*gateways):
    return sum(running.here.gateway.services.dispatch.provider_quota.refused["p0"] for running in gateways)


@pytest.mark.parametrize("rules", LIMITED.values(), ids=LIMITED)
async def test_a_provider_at_a_limit_is_no_candidate_and_its_request_waits_here(gateway, rules):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs, rules=rules)) as running:
            first = await full(running, here)
            theirs.then(until=asyncio.Event())
            over = asyncio.create_task(asked(running))
            await running.until(lambda: theirs.seen)
            waits = asyncio.create_task(asked(running))
            await running.until(lambda: refused(running) == 1)
            assert (len(theirs.seen), len(here.seen), waits.done()) == (1, 1, False)
            for worker in (here, theirs):
                worker.script.until.set()
            assert {(await call)[0] for call in (first, over, waits)} == {200}
            assert len(here.seen) == 2
            await running.until(lambda: running.idle)
            async with running.http.get(running.admin + "/metrics") as response:
                assert 'radixgate_provider_limited_total{worker="p0"} 1.0' in await response.text()


async def test_all_gateways_together_hold_a_providers_limit(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        rules = settings(here, theirs, rules={"concurrency": 3})
        async with gateway(tenants=CONSENTS, **rules) as one, gateway(tenants=CONSENTS, **rules) as two:
            await together(one, two)
            first = await full(one, here)
            theirs.then(until=asyncio.Event())
            calls = [asyncio.create_task(asked(running)) for running in (one, two) for _ in range(4)]
            await one.until(lambda: len(theirs.seen) + refused(one, two) == 8)
            assert (len(theirs.seen), refused(one, two), len(here.seen)) == (3, 5, 1)
            for worker in (here, theirs):
                worker.script.until.set()
            assert {(await call)[0] for call in (first, *calls)} == {200}
            await nothing_is_left(one, two)


async def test_a_request_that_waits_here_goes_over_when_the_provider_has_room_again(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        async with gateway(tenants=CONSENTS, **settings(here, theirs, rules={"concurrency": 1})) as running:
            first = await full(running, here)
            theirs.then(until=asyncio.Event())
            calls = [asyncio.create_task(asked(running)) for _ in range(2)]
            await running.until(lambda: refused(running) == 1)
            theirs.script.until.set()
            assert {(await call)[0] for call in calls} == {200}
            assert (len(theirs.seen), len(here.seen), first.done()) == (2, 1, False)
            here.script.until.set()
            await first
            await running.until(lambda: running.idle)


@pytest.mark.parametrize("ends", ["refused", "failed", "left"])
async def test_what_is_held_of_a_providers_limits_is_given_back_however_a_request_ends(gateway, ends):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        rules = {"concurrency": 1, "limits": [{"total_tokens": 14, "per": "hour"}]}
        async with gateway(tenants=CONSENTS, **settings(here, theirs, rules=rules)) as running:
            running.here.gateway.fleet.drain("w0")
            if ends == "left":
                theirs.then(until=asyncio.Event())
                call = asyncio.create_task(asked(running))
                await running.until(lambda: theirs.seen)
                assert len(running.here.gateway.services.dispatch.reservations.leases) == 1
                call.cancel()
            else:
                theirs.then(status={"refused": 400, "failed": 500}[ends])
                assert (await asked(running))[0] >= 400
            await running.until(lambda: running.idle)
            theirs.script = Script()
            # A client that left is charged with its prompt, by the gateway's own count.
            assert (await asked(running))[0] == (503 if ends == "left" else 200)


async def test_where_all_providers_are_at_a_limit_a_client_is_told_when_to_come_back(gateway):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        rules = {"limits": [{"requests": 1, "per": "hour"}]}
        async with gateway(tenants=CONSENTS, **settings(here, theirs, rules=rules)) as running:
            running.here.gateway.fleet.drain("w0")
            assert (await asked(running))[0] == 200
            async with running.chat() as response:
                body = await response.json()
                assert (response.status, body["error"]["code"]) == (503, "overloaded")
                assert 3000 < int(response.headers["retry-after"]) <= 3600
            assert len(theirs.seen) == 1
            await running.until(lambda: running.idle)


@pytest.mark.parametrize("source", ["file", "redis"])
async def test_a_provider_that_is_found_is_one_with_all_its_rules(gateway, records, tmp_path, source):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        rules = settings(here, theirs, rules={"limits": [{"requests": 1, "per": "hour"}]})
        ours, provider = json.loads(rules["workers"])
        rules["workers"] = json.dumps([ours])
        file = tmp_path / "workers.json"
        rules["discovery"] = json.dumps(
            [{"kind": source, **({"name": str(file)} if source == "file" else {})}]
        )
        file.write_text(json.dumps([provider]))
        async with gateway(tenants=CONSENTS, **rules) as running:
            at = running.here.gateway
            if source == "redis":
                await at.discovery.registry.put(provider, lease_seconds=None)
            await running.until(lambda: "p0" in at.fleet and at.fleet["p0"].health.state.value == "up", 60)
            at.fleet.drain("w0")
            assert (await asked(running, tenant="globex"))[0] == 503
            assert (await asked(running))[0] == 200
            assert theirs.seen[0].body["model"] == "their/m"
            assert (records[-1].worker, records[-1].spend) == ("p0", 10 * 10 + 4 * 20)
            assert (await asked(running))[0] == 503
            assert len(theirs.seen) == 1
            await running.until(lambda: running.idle)


@pytest.mark.parametrize("ends", ["answered", "rests", "at a limit", "failed"])
async def test_overflow_leaves_no_circles_behind_however_it_ends(gateway, ends):
    async with ScriptedWorker() as here, ScriptedWorker(["their/m"]) as theirs:
        many = {"limits": [{"requests": 1 if ends == "at a limit" else 1000, "per": "day"}]}
        async with gateway(tenants=CONSENTS, **settings(here, theirs, rules=many)) as running:
            fleet = running.here.gateway.fleet
            fleet.drain("w0")
            scripts = {"rests": {"status": 429}, "failed": {"status": 500}}
            theirs.then(**scripts.get(ends, {}))

            async def once():
                fleet["p0"].rests_until = 0.0
                await running.until(lambda: fleet.providers("m"), 60)
                await asked(running)
                await running.until(lambda: running.idle)
                await asyncio.sleep(0.01)

            assert await left_by(once) == {}
