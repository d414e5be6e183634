"""Functions on a real server: lost and loaded again, refused, and within what an access list allows."""

import asyncio
import re
from pathlib import Path

import pytest
import redis.asyncio as redis

from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.quotas.quota_store import Cost, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from gateway.settings.stores import IndexSettings
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.call import RedisDown
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.feed_lease_store import FeedLeaseTable
from tests.conformance.test_quota_store import WIDE
from tests.property.test_shared_tree import chained

W = WorkerId("w")
SPACE = Namespace(model="m", block_size=16)
APPEND = (
    "local verbs = {}\nverbs.append = function(keys, args) return redis.call('RPUSH', keys[1], args[1]) end"
)
RUNNING = Path(__file__).parents[3] / "docs" / "pages" / "operate" / "running.md"


@pytest.fixture
async def scripts(own_valkey):
    caller = ScriptCaller(own_valkey.url)
    yield caller
    await caller.close()


@pytest.fixture
async def client(own_valkey):
    async with redis.from_url(own_valkey.url) as made:
        yield made


@pytest.fixture
def append():
    return library_functions(APPEND, ["append"])["append"]


@pytest.mark.parametrize("loss", ["FUNCTION FLUSH", "SCRIPT FLUSH", "FLUSHALL", "restart"])
async def test_functions_that_a_server_has_lost_are_loaded_again(loss, scripts, append, client, own_valkey):
    await scripts.call(append, ["list"], [0])
    if loss == "restart":
        own_valkey.kill()
        own_valkey.start()
    else:
        await client.execute_command(*loss.split())
    await client.delete("list")
    await asyncio.gather(*(scripts.call(append, ["list"], [number]) for number in range(200)))
    assert await client.lrange("list", 0, -1) == [b"%d" % number for number in range(200)]


async def test_a_library_that_was_lost_is_sent_once_however_many_calls_were_under_way(
    scripts, append, client
):
    await scripts.call(append, ["list"], [0])
    await client.function_flush()
    await client.config_resetstat()
    await asyncio.gather(*(scripts.call(append, ["list"], [number]) for number in range(100)))
    assert (await client.info("commandstats"))["cmdstat_function|load"]["calls"] == 1


async def test_an_account_without_the_right_to_load_functions_gets_an_error_that_names_it(
    scripts, append, client
):
    await client.execute_command("ACL", "SETUSER", "default", "-function|load")
    with pytest.raises(RedisDown, match=r"not found.*function\|load"):
        await scripts.call(append, ["list"], [0])


async def test_the_access_list_that_the_documentation_gives_is_enough(own_valkey, client):
    rules = re.search(r"^user radixgate on >PASSWORD (.*)$", RUNNING.read_text(), re.MULTILINE)[1].split()
    await client.execute_command("ACL", "SETUSER", "radixgate", "on", ">PASSWORD", *rules)
    url = own_valkey.url.replace("unix://", "unix://radixgate:PASSWORD@")
    parts = SharedIndexParts.create(url, "rg", IndexSettings(predicted_seconds=0.1))
    following = asyncio.create_task(parts.reader.follow())
    await parts.wait_until_loaded()
    assert parts.reader.up
    index = parts.index
    index.enrol(W, "first")
    async with asyncio.timeout(60):
        while W not in index.replica.tenures:
            await asyncio.sleep(0.01)
        path = chained("abba")
        index.record(SPACE, path, W, "r")
        index.confirm(SPACE, path, W)
        index.shorten(SPACE, path, W, 3)
        while index.match(SPACE, path).confirmed.get(W) != 3:
            await asyncio.sleep(0.01)
        index.forget(W)
        assert await parts.maintenance._acquire_lease()
        while index.replica.blocks:
            await parts.maintenance.run_round()
            await asyncio.sleep(0.01)
    assert (await parts.feed_leases.renew(FeedLeaseTable(), 1000)).gateways
    assert index.refused == 0
    store = RedisQuotaStore(parts.scripts, timeout_seconds=5.0)
    await store.check()
    cost = Cost(prompt_tokens=10, output_tokens=5)
    lease = await store.reserve(Reservation(id="r", organisation="o", scopes=(WIDE,), cost=cost))
    await store.renew([lease])
    await store.settle(lease, cost)
    assert all(key.startswith(b"rg") for key in await client.keys("*"))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await parts.close()
    log = await client.execute_command("ACL", "LOG")
    assert not log, log


async def test_calls_of_several_libraries_leave_as_one_call(scripts, append, client):
    body = APPEND.replace("RPUSH", "LPUSH")
    prepend = library_functions(body, ["append"])["append"]
    scripts.bind({"append": append})
    scripts.bind({"append": prepend})
    await scripts.call(append, ["list"], [0])
    await client.config_resetstat()
    calls = [scripts.call(each, ["list"], [number]) for number in (1, 2) for each in (append, prepend)]
    assert await asyncio.gather(*calls) == [2, 3, 4, 5]
    assert await client.lrange("list", 0, -1) == [b"2", b"1", b"0", b"1", b"2"]
    stats = await client.info("commandstats")
    assert stats["cmdstat_fcall"]["calls"] == 1
    assert "cmdstat_function|load" not in stats


async def test_on_a_full_server_calls_that_free_memory_are_made_and_the_others_fail(scripts, client):
    body = APPEND + "\nverbs.drop = function(keys, args) return redis.call('DEL', keys[1]) end"
    functions = library_functions(body, ["append", "drop"], when_full=["drop"])
    append, drop = functions["append"], functions["drop"]
    await scripts.call(append, ["list"], [0])
    await client.config_set("maxmemory", "1")
    for _ in range(2):  # Once it is known that the server is full, they leave by themselves.
        calls = [scripts.call(append, ["list"], [1]), scripts.call(drop, ["list"], [])]
        first, second = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, RedisDown)
        assert "OOM" in str(first)
        assert second in (0, 1)
    assert not await client.exists("list")
    await client.config_set("maxmemory", "0")
    assert await scripts.call(append, ["list"], [0]) == 1
