"""The shared queue of a real Redis Cluster: models in shards, each on a primary of its own."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.fleet.fleet import Fleet
from gateway.fleet.worker import Worker
from gateway.queueing.shared.keys import CLUSTER_SHARDS, QueueKeys, shard_tags
from gateway.queueing.shared.queue_messages import SharedRoute
from gateway.queueing.shared.queue_shards import QueueShards
from gateway.queueing.shared.shard_layout import shard_of_group
from gateway.queueing.shared.shards_in_step import ShardsInStep, ShardVisits
from gateway.queueing.shared.turn_requests import TurnLost
from gateway.settings.queueing import QueueingSettings
from gateway.settings.stores import RedisSettings
from gateway.settings.tree import Settings
from gateway.wiring.shared_queue import attach_peers, shard_loops, shared_queue
from policies.queueing.protocol import Ticket
from radix_cache.match import WorkerId
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.redis.topology import slot_of
from tests.fakes.dispatch_stage import StubAdapter
from tests.fakes.fixed_window import FixedWindow
from tests.fakes.queue_members import until
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.queueing.test_shared_turns import (
    ONE_AT_A_TIME,
    PLANS,
    TENANTS,
    asked,
    held,
    queue_of,
    waiting,
)

pytestmark = pytest.mark.usefixtures("long_leases")

WINDOW = 100
TIMEOUT_MS = 5000
"""Longer than a busy machine stops the process: Redis is not to count as away."""
APART = "model-0", "model-1"
"""Two models of different shards."""


class Rooms:
    """No requests wait in this gateway's rooms."""

    def all(self):
        return {}

    def of(self, queue):
        return self

    def adopt(self, tenant, virtual_time, finish):
        pass


def worker(name, *models):
    return Worker(WorkerId(name), "test", StubAdapter(), frozenset(models), models_fixed=True)


@asynccontextmanager
async def member(url, prefix, *workers, tenant_shards=None):
    """A gateway's part of the queue, with its fleet and its loops."""
    queueing = QueueingSettings(tenant_shards=tenant_shards or {})
    settings = Settings(redis=RedisSettings(url=url, prefix=prefix, timeout_ms=TIMEOUT_MS), queueing=queueing)
    scripts, fleet = ScriptCaller(url), Fleet(workers)
    queue = shared_queue(settings, scripts, FixedWindow(WINDOW), fleet)
    attach_peers(queue, fleet, Rooms())
    runs = [queue.shards[0].membership.run, *(run for _, run in shard_loops(queue, scripts))]
    if tenant_shards:
        in_step = ShardsInStep(queue, lambda _: WINDOW)
        runs.append(ShardVisits(in_step, scripts, QueueKeys(prefix).visits, queue.gateway).run)
    loops = [asyncio.create_task(run()) for run in runs]
    try:
        yield queue, fleet
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await queue.close()
        await scripts.close()


def asks(queue, model, at, tenant="a", known=0):
    ticket = Ticket(number=0, tenant=tenant, cost=1.0, arrived_at=0.0)
    shared = queue.ticket(ticket, model, kv_tokens=1)
    route = SharedRoute(at, WINDOW, 1.0, queued_tokens=known)
    return shared, asyncio.create_task(queue.turn(shared, ticket, lambda: [route], lambda: None))


def joined(queue):
    return {shard.number for shard in queue.shards if shard.membership.up}


async def test_a_gateway_joins_the_shards_of_its_models_and_that_of_messages(cluster, tmp_path):
    workers = [worker(f"w{at}", model) for at, model in enumerate(APART)]
    async with member(cluster.url, tmp_path.name, *workers) as (queue, fleet):
        messages = queue.shards[0].number
        of_models = {shard_of_group(model, CLUSTER_SHARDS) for model in APART}
        assert isinstance(queue, QueueShards)
        assert len(of_models) == 2
        await until(lambda: joined(queue) == {messages, *of_models})
        fleet.remove(WorkerId("w0"))
        queue.fleet_changed()
        await until(lambda: joined(queue) == {messages, shard_of_group(APART[1], CLUSTER_SHARDS)})


async def test_gateways_share_the_window_of_a_worker_in_each_shard(cluster, tmp_path):
    workers = [[worker(f"w{at}", model) for at, model in enumerate(APART)] for _ in range(2)]
    async with (
        member(cluster.url, tmp_path.name, *workers[0]) as (one, _),
        member(cluster.url, tmp_path.name, *workers[1]) as (other, _),
    ):
        await until(lambda: one.shared and other.shared)
        for at, model in enumerate(APART):
            held_one, first = asks(one, model, f"w{at}")
            assert (await first).worker == f"w{at}"
            _, second = asks(other, model, f"w{at}")
            await asyncio.sleep(0.05)
            assert not second.done()
            one.leave(held_one, 0.0)
            assert (await second).worker == f"w{at}"


async def test_a_waiting_request_enters_again_when_its_model_comes_to_share_workers_with_another(
    cluster, tmp_path
):
    first, second = APART
    async with (
        member(cluster.url, tmp_path.name, worker("w0", first), worker("w1", second)) as (one, fleet),
        member(cluster.url, tmp_path.name, worker("w0", first), worker("w1", second)) as (other, _),
    ):
        await until(lambda: one.shared and other.shared)
        placed, task = asks(one, first, "w0")
        await task
        _, waits = asks(one, first, "w0")
        kept = asks(one, second, "w1")
        await kept[1]
        # Of both models most workers serve the second one: the first one's queue goes to its shard.
        for name in ("w2", "w3"):
            fleet.add(worker(name, second))
        fleet.add(worker("w4", first, second))
        one.fleet_changed()
        with pytest.raises(TurnLost):
            await waits
        assert one.membership_of(first) is one.membership_of(second)
        # What was placed before ends in the shard that placed it, and this gateway stays there until then.
        assert one.leave(placed, 0.0)
        assert one.leave(kept[0], 0.0)
        left = shard_of_group(first, CLUSTER_SHARDS)
        await until(lambda: left not in joined(one))


@pytest.mark.parametrize("parts", [1, CLUSTER_SHARDS])
async def test_turns_are_given_while_the_slot_of_their_shard_moves(parts, own_cluster, tmp_path):
    model, tags = APART[0], shard_tags(CLUSTER_SHARDS, tmp_path.name)
    slot = slot_of(f"{{{tags[shard_of_group(model, CLUSTER_SHARDS, 'a', parts)]}}}")
    divided = {"tenant_shards": {model: parts} if parts > 1 else None}
    async with (
        member(own_cluster.url, tmp_path.name, worker("w0", model), **divided) as (one, _),
        member(own_cluster.url, tmp_path.name, worker("w0", model), **divided) as (other, _),
    ):
        await until(lambda: one.shared and other.shared)
        turns, moved = 0, asyncio.Event()

        async def requests(queue):
            nonlocal turns
            while not moved.is_set():
                try:
                    shared, task = asks(queue, model, "w0")
                    await task
                except TurnLost:  # What a request does that hears of no decision in time.
                    await asyncio.sleep(0.01)
                    continue
                turns += 1
                await asyncio.sleep(0.002)
                queue.leave(shared, 0.0)

        running = [asyncio.create_task(requests(queue)) for queue in (one, other) for _ in range(3)]
        for _ in range(4):
            source = await asyncio.to_thread(own_cluster.owner, slot)
            target = next(node for node in own_cluster.nodes if node is not source)
            await asyncio.to_thread(own_cluster.begin_move, slot, target)
            await asyncio.sleep(0.02)
            await asyncio.to_thread(own_cluster.move_keys, slot, source, target)
            await asyncio.to_thread(own_cluster.end_move, slot, target)
            before = turns
            await until(lambda before=before: turns > before + 10 and one.shared and other.shared)
        moved.set()
        await asyncio.gather(*running)
        queues = [shard.membership for shard in (one.of(model, "a"), other.of(model, "a"))]
        await until(lambda: not any(membership.known_ids for membership in queues))


async def test_tenants_of_different_shards_do_not_fill_a_worker_twice(cluster, tmp_path):
    model, divided = APART[0], {"tenant_shards": {APART[0]: CLUSTER_SHARDS}}
    async with (
        member(cluster.url, tmp_path.name, worker("w0", model), **divided) as (one, _),
        member(cluster.url, tmp_path.name, worker("w0", model), **divided) as (other, _),
    ):
        await until(lambda: one.shared and other.shared)
        assert one.of(model, "a") is not one.of(model, "b")
        held_a, first = asks(one, model, "w0")
        await first
        # The gateway knows of it before the other shard is told.
        held_b, second = asks(one, model, "w0", "b", known=WINDOW)
        _, third = asks(other, model, "w0", "c", known=WINDOW)
        await asyncio.sleep(0.5)
        assert not second.done()
        assert not third.done()
        one.leave(held_a, 0.0)
        await asyncio.wait((second, third), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.5)
        assert [second.done(), third.done()].count(True) == 1
        if second.done():
            one.leave(held_b, 0.0)
            assert (await third).worker == "w0"
        else:
            second.cancel()


@pytest.mark.parametrize("parts", [1, CLUSTER_SHARDS])
async def test_all_are_served_in_a_cluster_and_tenants_of_one_shard_share_by_weight(parts, gateway, cluster):
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(ScriptedWorker())
        rules = {**PLANS, **ONE_AT_A_TIME, "redis.url": cluster.url}
        if parts > 1:
            rules["queueing.tenant_shards"] = json.dumps({"m": parts})
        gateways = [await stack.enter_async_context(gateway(one, tenants=TENANTS, **rules)) for _ in range(2)]
        for each in gateways:
            await each.until(lambda at=each: queue_of(at).shared and queue_of(at).gateways == 2)
        release = held(one)
        calls = [asyncio.create_task(asked(gateways[0], "first", max_tokens=4))]
        await gateways[0].until(lambda: one.seen)
        one.then(until=None)
        for number in range(45):
            for at, tenant in enumerate(TENANTS):
                through = gateways[(number + at) % 2]
                calls.append(asyncio.create_task(asked(through, tenant, tenant=tenant, max_tokens=4)))
        # A shard that has not heard of the others yet may send the worker a few more.
        await gateways[0].until(lambda: waiting(*gateways) >= (90 if parts == 1 else 80))
        release.set()
        assert set(await asyncio.gather(*calls)) == {200}
        turns = Counter(seen.body["messages"][0]["content"] for seen in one.seen[1:53])
        if parts == 1:
            # So few turns are over before shards have heard of each other: test_divided_tenants.py counts more.
            assert turns["globex"] == pytest.approx(39, abs=2)
        await _nothing_is_left(gateways)


async def _nothing_is_left(gateways):
    """No place and no load, in no gateway and in no shard."""
    for each in gateways:
        await each.until(lambda at=each: at.idle)
    settings, scripts = gateways[0].here.gateway.settings.redis, gateways[0].here.gateway.scripts
    tags = [
        QueueKeys(settings.prefix, tag).turns.removesuffix(":turns")
        for tag in shard_tags(CLUSTER_SHARDS, settings.prefix)
    ]
    async with asyncio.timeout(60):
        while any(
            [await scripts.ask("HLEN", f"{tag}:{name}") for tag in tags for name in ("loads", "places")]
        ):
            await asyncio.sleep(0.01)
