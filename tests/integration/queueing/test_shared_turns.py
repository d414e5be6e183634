"""Several gateways share one queue: shares hold, placements spread, and a dead gateway stalls no other."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack

import pytest
import redis.asyncio as redis

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.queue_messages import SharedRoute, SharedTicket
from gateway.queueing.shared.queue_store import QueueStore
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow
from tests.fakes.scripted_worker import ScriptedWorker

ONE_AT_A_TIME = {"queueing.release_window_tokens": "1", "queueing.within": "fcfs"}
PLANS = {"plans": json.dumps([{"name": "plan"}, {"name": "big", "weight": 3}])}
RATED_TOKENS_PER_SECOND = 20
TENANTS = {"acme": {}, "globex": {"plan": "big"}}


def queue_of(running):
    return running.here.gateway.services.dispatch.queue


def waiting(*gateways):
    return sum(len(g.here.gateway.services.dispatch.rooms.of("m")) for g in gateways)


async def asked(running, text="hello", **more):
    async with running.chat(text, **more) as response:
        await response.read()
        return response.status


def held(worker):
    """From now on it answers when this is set."""
    release = asyncio.Event()
    worker.then(until=release)
    return release


async def together(*gateways):
    """They know of each other."""
    for running in gateways:
        await running.until(lambda at=running: queue_of(at).shared and queue_of(at).gateways == len(gateways))


async def nothing_is_left(running, *gateways):
    """No place, no ticket, no load, in no gateway and not in Redis."""
    for each in (running, *gateways):
        await each.until(lambda at=each: at.idle and len(queue_of(at)) == 0)
    settings = running.here.gateway.settings.redis
    async with redis.from_url(settings.url) as client:
        tag = f"{settings.prefix}:{{queue}}"
        async with asyncio.timeout(60):
            while any([await client.hlen(f"{tag}:{name}") for name in ("loads", "places")]):
                await asyncio.sleep(0.01)
        assert await client.zcard(f"{tag}:owned") == await client.zcard(f"{tag}:grants") == 0
        assert await client.zcard(f"{tag}:active:m") == await client.zcard(f"{tag}:tickets:m") == 0


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_tenants_share_by_weight_however_many_gateways_they_come_through(gateway, count):
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(ScriptedWorker())
        gateways = [
            await stack.enter_async_context(gateway(worker, tenants=TENANTS, **PLANS, **ONE_AT_A_TIME))
            for _ in range(count)
        ]
        if count > 1:
            await together(*gateways)
        release = held(worker)
        calls = [asyncio.create_task(asked(gateways[0], "first", max_tokens=4))]
        await gateways[0].until(lambda: worker.seen)
        worker.then(until=None)
        for number in range(45):
            for at, tenant in enumerate(TENANTS):
                through = gateways[(number + at) % count]
                calls.append(asyncio.create_task(asked(through, tenant, tenant=tenant, max_tokens=4)))
        await gateways[0].until(lambda: waiting(*gateways) == 90)
        release.set()
        assert set(await asyncio.gather(*calls)) == {200}
        turns = Counter(seen.body["messages"][0]["content"] for seen in worker.seen[1:53])
        assert turns["globex"] == pytest.approx(39, abs=2)
        if count > 1:
            await nothing_is_left(*gateways)


@pytest.mark.parametrize("policy", ["least_work", "cost"])
@pytest.mark.parametrize("count", [1, 2])
async def test_cold_prompts_at_one_moment_spread_through_two_gateways_as_through_one(gateway, count, policy):
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker()) for _ in range(4)]
        # So slow that none of them has computed a prompt before all prompts are there, also on a busy machine.
        rated = {"kind": "sglang", "prefill_tokens_per_second": RATED_TOKENS_PER_SECOND}
        entries = [{"id": f"w{at}", "url": worker.url, **rated} for at, worker in enumerate(workers)]
        settings = {"routing.policy": policy, "workers": json.dumps(entries)}
        gateways = [await stack.enter_async_context(gateway(*workers, **settings)) for _ in range(count)]
        if count > 1:
            await together(*gateways)
        releases = [held(worker) for worker in workers]
        texts = [f"{number} prompt of its own " * 200 for number in range(16)]
        calls = [asyncio.create_task(asked(gateways[at % count], text)) for at, text in enumerate(texts)]
        await gateways[0].until(lambda: sum(len(worker.seen) for worker in workers) == 16)
        for release in releases:
            release.set()
        assert set(await asyncio.gather(*calls)) == {200}
        # Two gateways hear a moment later of each other's placements.
        assert all(3 <= len(worker.seen) <= 5 for worker in workers)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_request_that_waits_for_the_worker_with_its_prompt_lets_others_go_to_the_free_one(
    gateway, count
):
    """Of the same tenant too, and whichever gateway they came to."""
    text, rules = "a prompt that is sent twice " * 1800, {"queueing.release_window_tokens": "500"}
    async with AsyncExitStack() as stack:
        warm, cold = [await stack.enter_async_context(ScriptedWorker()) for _ in range(2)]
        gateways = [await stack.enter_async_context(gateway(warm, cold, **rules)) for _ in range(count)]
        if count > 1:
            await together(*gateways)
        configured = gateways[0].here.gateway.settings.workers
        for each in gateways:
            each.here.gateway.discovery.reconfigure(configured[:1])
        assert await asked(gateways[0], text) == 200
        for each in gateways:
            replica = each.here.gateway.index.index.replica
            await each.until(lambda of=replica: of.held.get(of.tenures.get("w0")))
        release = held(warm)
        busy = asyncio.create_task(asked(gateways[0], "x" * 4000))
        await gateways[0].until(lambda: len(warm.seen) == 2)
        for each in gateways:
            each.here.gateway.discovery.reconfigure(configured)
            await each.until(lambda at=each: all(worker.able for worker in at.here.gateway.fleet))
        choosy = asyncio.create_task(asked(gateways[-1], text + "and a question"))
        await gateways[-1].until(lambda: waiting(*gateways) == 1)
        for each in gateways:
            assert await asked(each, "y" * 400) == 200
        assert (len(cold.seen), waiting(*gateways)) == (count, 1)
        release.set()
        assert await asyncio.gather(busy, choosy) == [200, 200]
        assert (len(warm.seen), len(cold.seen)) == (3, count)


async def test_a_turn_of_one_gateway_comes_when_the_other_one_frees_the_worker(gateway, redis_url):
    settings = {**ONE_AT_A_TIME, "redis.url": redis_url}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **settings) as one,
        gateway(worker, **settings) as other,
    ):
        await together(one, other)
        release = held(worker)
        first = asyncio.create_task(asked(one))
        await one.until(lambda: worker.seen)
        second = asyncio.create_task(asked(other))
        await other.until(lambda: waiting(other) == 1)
        await asyncio.sleep(0.05)
        assert len(worker.seen) == 1
        release.set()
        assert await asyncio.gather(first, second) == [200, 200]
        for each in (one, other):
            await each.until(lambda at=each: at.idle)


async def test_a_request_that_leaves_while_waiting_for_all_gateways_turns_leaves_nothing(gateway):
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **ONE_AT_A_TIME) as one,
        gateway(worker, **ONE_AT_A_TIME) as other,
    ):
        await together(one, other)
        release = held(worker)
        first = asyncio.create_task(asked(one))
        await one.until(lambda: worker.seen)
        calls = [asyncio.create_task(asked(at, f"{n}")) for n in range(6) for at in (one, other)]
        await one.until(lambda: waiting(one, other) == 12)
        worker.then(until=None, first_after=0.02)
        release.set()
        for call in calls[::2]:
            call.cancel()
            await asyncio.sleep(0.005)
        assert await first == 200
        assert set(await asyncio.gather(*calls[1::2])) == {200}
        await nothing_is_left(one, other)


async def test_inside_a_tenant_a_turn_goes_to_the_shortest_prompt_of_its_gateway(gateway):
    shortest = {**ONE_AT_A_TIME, "queueing.within": "hrrn"}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **shortest) as one,
        gateway(worker, **shortest) as other,
    ):
        await together(one, other)
        release = held(worker)
        calls = [asyncio.create_task(asked(other, "first"))]
        await other.until(lambda: worker.seen)
        for size in (4000, 40, 400):
            calls.append(asyncio.create_task(asked(one, "x" * size)))
            await one.until(lambda: waiting(one) == len(calls) - 1)
        release.set()
        assert set(await asyncio.gather(*calls)) == {200}
        assert [len(seen.body["messages"][0]["content"]) for seen in worker.seen[1:]] == [40, 400, 4000]


async def test_a_request_that_gave_its_turn_to_a_shorter_one_may_still_go_to_any_worker(gateway):
    shortest = {**ONE_AT_A_TIME, "queueing.within": "hrrn", "routing.policy": "least_work"}
    async with (
        ScriptedWorker() as soon,
        ScriptedWorker() as late,
        gateway(soon, late, **shortest) as one,
        gateway(soon, late, **shortest) as other,
    ):
        await together(one, other)
        workers = (soon, late)
        frees = [held(worker) for worker in workers]
        calls = [asyncio.create_task(asked(other, "first" * 50)) for _ in workers]
        await other.until(lambda: all(worker.seen for worker in workers))
        for worker in workers:
            worker.then(until=asyncio.Event())
        for size in (4000, 40):
            calls.append(asyncio.create_task(asked(one, "x" * size)))
            await one.until(lambda: waiting(one) == len(calls) - 2)
        frees[0].set()
        await one.until(lambda: len(soon.seen) == 2)
        frees[1].set()
        await one.until(lambda: len(late.seen) == 2)
        assert [len(worker.seen[1].body["messages"][0]["content"]) for worker in workers] == [40, 4000]
        for worker in workers:
            worker.script.until.set()
        assert set(await asyncio.gather(*calls)) == {200}
        await nothing_is_left(one, other)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_model_whose_requests_pile_up_does_not_keep_another_from_the_worker_of_both(gateway, count):
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(ScriptedWorker(["m", "n"]))
        rules = {**ONE_AT_A_TIME, "models": json.dumps([{"name": "m"}, {"name": "n"}])}
        gateways = [await stack.enter_async_context(gateway(worker, **rules)) for _ in range(count)]
        if count > 1:
            await together(*gateways)
        one, release = gateways[0], held(worker)
        rooms = one.here.gateway.services.dispatch.rooms.all
        calls = [asyncio.create_task(asked(one, "first"))]
        await one.until(lambda: worker.seen)
        worker.then(until=None)
        calls += [asyncio.create_task(asked(one, model, model=model)) for model in "mmmmmmmmnnn"]
        await one.until(lambda: sum(map(len, rooms().values())) == len(calls) - 1)
        release.set()
        assert set(await asyncio.gather(*calls)) == {200}
        assert sorted(seen.body["model"] for seen in worker.seen[1:7]) == ["m"] * 3 + ["n"] * 3
        if count > 1:
            await nothing_is_left(*gateways)


async def test_a_gateway_that_died_holds_nothing_after_five_seconds(gateway, valkey):
    """The dead one is the protocol itself: it joins, takes the worker, stands in the queue, and is silent."""
    async with ScriptedWorker() as worker, gateway(worker, **ONE_AT_A_TIME) as running:
        prefix = running.here.gateway.settings.redis.prefix
        scripts = ScriptCaller(valkey.url)
        dying = QueueStore(scripts, QueueKeys(prefix), "dead" * 4, FixedWindow(1))
        await dying.join(["m"], 3000, "first")
        await running.until(lambda: queue_of(running).shared)
        for number in range(2):
            ticket = SharedTicket(
                id=f"{dying.gateway}:{number}", queue="m", tenant="x", weight=1.0, cost=1.0, kv_tokens=9
            )
            told = await dying.admit(ticket, [SharedRoute("w0", 100, 1.0)])
            assert told.outcome == 1 - number
        call = asyncio.create_task(asked(running))
        await running.until(lambda: waiting(running) == 1)
        await scripts.close()
        assert await asyncio.wait_for(call, 60) == 200
        await running.until(lambda: not queue_of(running).shared)


async def test_a_turn_that_is_not_claimed_goes_to_the_next(gateway, valkey):
    async with ScriptedWorker() as worker, gateway(worker, **ONE_AT_A_TIME) as running:
        scripts = ScriptCaller(valkey.url)
        deaf = QueueStore(
            scripts, QueueKeys(running.here.gateway.settings.redis.prefix), "deaf" * 4, FixedWindow(1)
        )
        await deaf.join(["m"], 60_000, "first")
        await running.until(lambda: queue_of(running).shared)
        release = held(worker)
        first = asyncio.create_task(asked(running, "first"))
        await running.until(lambda: worker.seen)
        ticket = SharedTicket(
            id=f"{deaf.gateway}:1", queue="m", tenant="acme", weight=1.0, cost=1.0, kv_tokens=9
        )
        assert (await deaf.admit(ticket, [SharedRoute("w0", 100, 1.0)])).outcome == 0
        second = asyncio.create_task(asked(running, "second"))
        await running.until(lambda: waiting(running) == 1)
        release.set()
        assert await asyncio.wait_for(asyncio.gather(first, second), 60) == [200, 200]
        await scripts.close()


async def test_while_redis_is_away_turns_are_given_alone_and_afterwards_together_again(gateway, own_valkey):
    settings = {**ONE_AT_A_TIME, "redis.url": own_valkey.url}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **settings) as one,
        gateway(worker, **settings) as other,
    ):
        await together(one, other)
        release = held(worker)
        calls = [asyncio.create_task(asked(at, f"{n}")) for n in range(3) for at in (one, other)]
        await one.until(lambda: waiting(one, other) == 5)
        own_valkey.kill()
        await one.until(lambda: not queue_of(one).shared and not queue_of(other).shared)
        release.set()
        assert queue_of(one).membership.share_of(16000) == 8000
        assert set(await asyncio.gather(*calls)) == {200}
        calls = [asyncio.create_task(asked(at, f"{n}")) for n in range(3) for at in (one, other)]
        own_valkey.start()
        await together(one, other)
        assert set(await asyncio.gather(*calls)) == {200}
        await nothing_is_left(one, other)


async def test_a_redis_that_loses_everything_gets_the_loads_again(gateway, own_valkey):
    settings = {**ONE_AT_A_TIME, "redis.url": own_valkey.url}
    async with (
        ScriptedWorker() as worker,
        gateway(worker, **settings) as one,
        gateway(worker, **settings) as other,
        redis.from_url(own_valkey.url) as client,
    ):
        await together(one, other)
        release = held(worker)
        calls = [asyncio.create_task(asked(at, f"{n}")) for n in range(4) for at in (one, other)]
        await one.until(lambda: waiting(one, other) == 7)
        await client.flushall()
        release.set()
        assert set(await asyncio.gather(*calls)) == {200}
        await together(one, other)
        await nothing_is_left(one, other)


async def test_the_load_that_one_gateway_makes_is_seen_by_the_other(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as one, gateway(worker) as other:
        await together(one, other)
        release = held(worker)
        call = asyncio.create_task(asked(one, "x" * 4000))
        (seen,) = other.here.gateway.fleet
        await other.until(lambda: seen.load.all_tokens_queued >= 1000)
        assert (seen.load.tokens_queued, seen.snapshot(0.0).streams) == (0, 1)
        release.set()
        assert await call == 200
        await other.until(lambda: seen.snapshot(0.0).streams == 0)


@pytest.mark.parametrize("waits", [False, True], ids=["placed", "waiting"])
async def test_a_worker_that_leaves_while_a_turn_is_given_fails_no_request(gateway, monkeypatch, waits):
    """It was ranked, and Redis is being asked; nothing of this gateway runs there, so it is gone at once."""
    at = {**ONE_AT_A_TIME, "queueing.preempts": "true"}
    async with (
        ScriptedWorker() as one,
        ScriptedWorker() as two,
        gateway(one, two, **at) as running,
        gateway(one, two, **at) as other,
    ):
        await together(running, other)
        releases, before = [held(one), held(two)], []
        if waits:
            before = [asyncio.create_task(asked(other, text)) for text in ("first", "second")]
            await other.until(lambda: one.seen and two.seen)
        else:
            for worker in (one, two):
                worker.then(until=None)
        discovery, store, left = running.here.gateway.discovery, queue_of(running)._store, []
        admit = store.admit

        async def meanwhile(ticket, routes, before=()):
            told = await admit(ticket, routes, before)
            if not left:
                assert (told.worker is None) == waits
                left.append(told.worker or routes[0].worker)
                discovery.reconfigure([w for w in running.here.gateway.settings.workers if w.id != left[0]])
            return told

        monkeypatch.setattr(store, "admit", meanwhile)
        call = asyncio.create_task(asked(running))
        await running.until(lambda: left)
        assert left[0] not in running.here.gateway.fleet
        for release in releases:
            release.set()
        assert await asyncio.gather(call, *before) == [200] * (1 + len(before))
        await nothing_is_left(running, other)
