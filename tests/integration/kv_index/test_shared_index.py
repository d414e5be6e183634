"""The index of two gateways: each learns the other's changes, also while Redis restarts or has lost all."""

import asyncio

import redis.asyncio as redis

from gateway.kv_index import shared_index_parts
from radix_cache.shared.replica_reader import ReplicaReader
from tests.fakes.scripted_worker import ScriptedWorker

LONG = "a system prompt that all requests share " * 60
VERY_LONG = "a document of sixteen thousand tokens, more or less " * 1300


def index_of(running):
    return running.here.gateway.index


async def asked(running, text, **more):
    async with running.chat(text, **more) as response:
        await response.read()
        return response.status


def where(*workers):
    """How many requests each worker has seen."""
    return [len(worker.seen) for worker in workers]


async def published(running):
    """Wait until the gateway's changes are in Redis, and its own copy shows them."""
    scripts = index_of(running).scripts
    await running.until(lambda: not scripts.busy)
    for _ in range(3):  # Meanwhile the copy gets what was published before the answers came.
        await scripts.ping()


async def test_a_gateway_that_still_reads_the_index_routes_by_load(gateway, redis_url, monkeypatch):
    async def read_for_ever(reader):
        await asyncio.Event().wait()

    monkeypatch.setattr(ReplicaReader, "follow", read_for_ever)
    async with ScriptedWorker() as worker, gateway(worker, **{"redis.url": redis_url}) as running:
        assert await asked(running, LONG) == 200
        assert not index_of(running).reader.ready.is_set()


async def test_what_one_gateway_learns_the_other_uses(gateway, redis_url):
    async with (
        ScriptedWorker() as a,
        ScriptedWorker() as b,
        gateway(a, b, **{"redis.url": redis_url}) as one,
        gateway(a, b, **{"redis.url": redis_url}) as other,
    ):
        assert await asked(one, LONG) == 200
        (first,) = [at for at, seen in enumerate(where(a, b)) if seen]
        await published(one)
        await other.until(
            lambda: 0 < index_of(one).index.replica.blocks == index_of(other).index.replica.blocks
        )
        for number in range(4):
            assert await asked(one if number % 2 else other, f"{LONG}{number}") == 200
        assert where(a, b)[1 - first] == 0


async def test_a_gateway_that_starts_has_a_small_tree_before_it_serves(gateway, redis_url, monkeypatch):
    monkeypatch.setattr(shared_index_parts, "LOAD_SECONDS_MAX", 60.0)
    async with ScriptedWorker() as worker:
        async with gateway(worker, **{"redis.url": redis_url}) as first:
            for number in range(20):
                assert await asked(first, f"{number} {LONG}") == 200
            await published(first)
            blocks = index_of(first).index.replica.blocks
            assert blocks > 20
        async with gateway(worker, **{"redis.url": redis_url}) as second:
            assert index_of(second).index.replica.blocks == blocks


async def test_a_worker_that_restarted_while_no_gateway_looked_starts_with_nothing(gateway):
    async with ScriptedWorker() as worker:
        async with gateway(worker) as first:
            assert await asked(first, LONG) == 200
            await first.until(lambda: index_of(first).index.replica.blocks > 0)
        worker.instance = "second"
        async with gateway(worker) as second:
            copy = index_of(second).index.replica
            await second.until(lambda: copy.instances.get("w0") == "second")
            assert copy.held.get(copy.tenures["w0"], 0) == 0


async def test_a_stampede_of_one_new_prefix_through_two_gateways_stays_together(gateway):
    """64 at once: a worker is chosen and the others follow, though no prefill has ended; one prefill a worker."""
    workers = [ScriptedWorker() for _ in range(8)]
    for worker in workers:
        worker.then(first_after=0.4)
    async with asyncio.TaskGroup() as starting:
        for worker in workers:
            starting.create_task(worker.start())
    wide = {"queueing.release_window_tokens": "10000000"}
    async with gateway(*workers, **wide) as one, gateway(*workers, **wide) as other:
        for each in (one, other):
            parts = index_of(each)
            await each.until(
                lambda of=parts: (
                    of.reader.up and not of.index.is_alone() and len(of.index.replica.tenures) == len(workers)
                )
            )
        calls = []
        for number in range(64):
            calls.append(asyncio.create_task(asked(one if number % 2 else other, f"{VERY_LONG}{number}")))
            await asyncio.sleep(0.002)
        assert set(await asyncio.gather(*calls)) == {200}
        chosen = [seen for seen in where(*workers) if seen]
        assert sum(chosen) == 64
        counted = dict.fromkeys(("predicted_cached_tokens", "prompt_tokens"), 0.0)
        for running in (one, other):
            async with running.http.get(running.admin + "/metrics") as response:
                text = await response.text()
            for line in text.splitlines():
                for name in counted:
                    if line.startswith(f"radixgate_worker_{name}_total"):
                        counted[name] += float(line.split()[-1])
        # Two that leave in one moment may both be first at their worker.
        followed = (64 - len(chosen) - 2) / 64
        # The worker counts ten tokens a prompt, of which the last is always computed.
        assert counted["predicted_cached_tokens"] >= followed * counted["prompt_tokens"] * 0.9
    for worker in workers:
        await worker.stop()


async def test_predictions_are_sent_once_there_is_another_gateway(gateway, redis_url, monkeypatch):
    async with ScriptedWorker() as worker, gateway(worker, **{"redis.url": redis_url}) as one:
        index, sent = index_of(one).index, []
        predict = index.store.predict
        monkeypatch.setattr(
            index.store, "predict", lambda *args, **more: sent.append(args) or predict(*args, **more)
        )
        await one.until(index.is_alone)
        assert await asked(one, LONG) == 200
        assert not sent
        async with gateway(worker, **{"redis.url": redis_url}):
            await one.until(lambda: not index.is_alone())
            assert await asked(one, f"another {LONG}") == 200
            assert len(sent) == 1


async def test_a_prediction_that_failed_is_withdrawn_everywhere(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as one, gateway(worker) as other:
        for each in (one, other):
            parts = index_of(each)
            await each.until(lambda of=parts: of.reader.up and not of.index.is_alone())
        worker.then(silent=True)
        call = asyncio.create_task(asked(one, LONG))
        await other.until(lambda: index_of(other).index.replica.predictions == 1)
        call.cancel()
        await other.until(lambda: index_of(other).index.replica.predictions == 0)
        assert index_of(other).index.replica.blocks == 0


async def test_while_redis_is_away_requests_are_served_and_what_was_learnt_is_recorded_afterwards(
    gateway, own_valkey
):
    settings = {"redis.url": own_valkey.url, "redis.timeout_ms": "50"}
    async with ScriptedWorker() as a, ScriptedWorker() as b, gateway(a, b, **settings) as running:
        parts = index_of(running)
        assert await asked(running, f"before {LONG}") == 200
        await running.until(lambda: parts.index.replica.blocks > 0)
        own_valkey.kill()
        await running.until(lambda: not parts.reader.up)
        for text in (f"before {LONG}", f"while {LONG}", f"while {LONG}"):
            assert await asked(running, text) == 200
        assert sorted(where(a, b)) in ([0, 4], [2, 2], [1, 3])
        async with running.http.get(running.admin + "/health/ready") as response:
            assert response.status == 200
            assert (await response.json())["index"] == "standing still"
        own_valkey.start()
        await running.until(lambda: parts.reader.up and parts.index.replica.blocks > 0, seconds=60)
        async with redis.from_url(own_valkey.url) as client:
            assert [key async for key in client.scan_iter("*:tree:*")]


async def test_a_redis_that_is_not_there_at_the_start_is_used_when_it_comes(gateway, own_valkey, caplog):
    caplog.set_level("INFO", "radix_cache")
    own_valkey.kill()
    settings = {"redis.url": own_valkey.url, "redis.timeout_ms": "50"}
    async with ScriptedWorker() as a, ScriptedWorker() as b, gateway(a, b, **settings) as running:
        parts = index_of(running)
        for number in range(3):
            assert await asked(running, f"{LONG}{number}") == 200
        # Without Redis a process has a tree of its own: the second and the third follow the first.
        assert sorted(where(a, b)) == [0, 3]
        async with running.http.get(running.admin + "/health/ready") as response:
            found = await response.json()
            assert (response.status, found["index"], found["redis"]) == (200, "standing still", "away")
        own_valkey.start()
        await running.until(lambda: parts.reader.up and parts.index.replica.blocks > 0, seconds=60)
        await running.until(lambda: not running.here.gateway.quotas.store.away, seconds=60)
        assert await asked(running, f"{LONG}again") == 200
        assert sorted(where(a, b)) == [0, 4]
    said = [record.message for record in caplog.records if "prefix index" in record.message]
    assert [message.partition(" (")[0] for message in said] == [
        "the prefix index has lost Redis and answers from its replica in memory",
        "the prefix index follows all shards in Redis",
    ]


async def test_a_redis_that_refuses_to_write_fails_no_request(gateway, own_valkey):
    async with ScriptedWorker() as worker, gateway(worker, **{"redis.url": own_valkey.url}) as running:
        async with redis.from_url(own_valkey.url) as client:
            await client.config_set("maxmemory", "1")
            assert await asked(running, LONG) == 200
            await running.until(lambda: index_of(running).index.refused > 0)
            assert await asked(running, LONG) == 200
            await client.config_set("maxmemory", "0")
        await running.until(lambda: index_of(running).index.replica.blocks > 0, seconds=60)


async def test_a_flush_is_survived(gateway, own_valkey):
    async with ScriptedWorker() as worker, gateway(worker, **{"redis.url": own_valkey.url}) as running:
        assert await asked(running, LONG) == 200
        copy = index_of(running).index.replica
        await running.until(lambda: copy.blocks > 0)
        async with redis.from_url(own_valkey.url) as client:
            await client.flushall()
        await running.until(lambda: copy.blocks == 0)
        await running.until(lambda: "w0" in copy.tenures, seconds=60)
        assert await asked(running, LONG) == 200
        await running.until(lambda: copy.blocks > 0)
