"""A Redis that sentinels watch: calls go on at the new primary after a failover."""

import asyncio
import subprocess

import pytest
import redis

from gateway.settings.redis_address import redis_url_problem
from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.redis_cluster import free_ports, server_binary, until
from workers.launching.child_process import die_with_parent

APPEND = Script.from_text("#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])")
SECONDS_MAX = 60


def start(directory, port, *options):
    """Start a server in a directory of its own, and wait until it answers."""
    directory.mkdir()
    command = [server_binary(), *options, "--port", str(port), "--dir", str(directory)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
    )
    client = redis.Redis(port=port)

    def answers():
        try:
            return client.ping()
        except redis.RedisError:
            return False

    until(answers, "the server does not start")
    return process, client


@pytest.fixture
def watched(tmp_path):
    """Start a primary, its replica and a sentinel; give the URL, and process and client of the two servers."""
    primary_port, replica_port, sentinel_port = free_ports(3)
    primary = start(tmp_path / "primary", primary_port, "--save", "")
    replica = start(
        tmp_path / "replica", replica_port, "--save", "", "--replicaof", f"127.0.0.1 {primary_port}"
    )
    until(lambda: replica[1].info("replication")["master_link_status"] == "up", "no replication")
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"sentinel monitor main 127.0.0.1 {primary_port} 1\n"
        "sentinel down-after-milliseconds main 300\n"
        "sentinel failover-timeout main 2000\n"
    )
    sentinel = start(tmp_path / "sentinel", sentinel_port, str(config), "--sentinel")
    until(
        lambda: sentinel[1].execute_command("SENTINEL", "REPLICAS", "main"), "the sentinel knows no replica"
    )
    yield f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel_port}/main", primary, replica
    for process, _ in (sentinel, replica, primary):
        process.kill()
        process.wait()


async def appended(caller):
    """Append until a call succeeds, and return the length of the list."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return await caller.call(APPEND, ["list"], ["x"])
            except RedisDown:
                await asyncio.sleep(0.05)


async def test_calls_go_to_the_primary_and_after_a_failover_to_the_new_one(watched):
    url, (primary, _), (_, replica) = watched
    caller = ScriptCaller(url)
    try:
        assert await appended(caller) == 1
        until(lambda: replica.llen("list") == 1, "nothing is replicated")
        primary.kill()
        assert await appended(caller) >= 2
        assert replica.info("replication")["role"] == "master"
    finally:
        await caller.close()


async def test_sentinels_that_are_away_are_an_answer_not_a_hang():
    caller = ScriptCaller("redis+sentinel://127.0.0.1:1/main")
    try:
        with pytest.raises(RedisDown, match="no sentinel names a primary of main"):
            await caller.ping()
    finally:
        await caller.close()


@pytest.mark.parametrize(
    ("url", "valid"),
    [
        ("redis+sentinel://one:26379,two/main", True),
        ("rediss+sentinel://user:word@one/main/2", True),
        ("redis+sentinel://one:26379", False),
        ("redis+sentinel:///main", False),
        ("redis+sentinel://one:port/main", False),
    ],
)
def test_addresses_of_sentinels_are_checked_before_any_connection(url, valid):
    assert (redis_url_problem(url) is None) == valid
