"""Redis by TLS, one server and a cluster, with a certificate that only its own authority knows."""

import asyncio
import shutil
import subprocess
import time
from array import array
from contextlib import AsyncExitStack

import pytest

from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from tests.fakes.redis_cluster import Node, server_binary
from tests.fakes.replica import replica
from tests.fakes.tls_terminator import TlsTerminator, certificate
from tests.stage.ports import free_port, free_ports

APPEND = Script.from_text("#!lua\nreturn redis.call('RPUSH', KEYS[1], ARGV[1])")
BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 10, "idle_seconds_max": 1000}
W = WorkerId("w")

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


async def until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it does not become true"
        await asyncio.sleep(0.02)


@pytest.fixture
async def doors(own_cluster, pair):
    """A cluster whose servers tell of each other where their doors are."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(TlsTerminator(node.port, *pair)) for node in own_cluster.nodes
        ]
        ports = {door.port for door in opened}
        for node, door in zip(own_cluster.nodes, opened, strict=True):
            await asyncio.to_thread(node.ask, "CONFIG", "SET", "cluster-announce-port", door.port)

        def told():
            return all(
                {primary[1] for _, _, primary, *_ in node.ask("CLUSTER", "SLOTS")} == ports
                for node in own_cluster.nodes
            )

        await until(told)
        yield opened


def address(doors, cert, options=""):
    hosts = ",".join(f"127.0.0.1:{door.port}" for door in doors[:1])
    return f"rediss+cluster://{hosts}?ssl_ca_certs={cert}{options}"


async def test_a_cluster_is_followed_through_tls_from_server_to_server(doors, pair):
    keys = Keys(prefix="t", shards=16)
    one, other = [await replica(address(doors, pair[0]), keys, time.monotonic, **BOUNDS) for _ in range(2)]
    one.index.enrol(W, "first")
    await until(lambda: W in one.index.replica.tenures and W in other.index.replica.tenures)
    spaces = [Namespace(model=f"m{number}", block_size=16) for number in range(30)]
    paths = [array("Q", [1000 + number, 2000 + number]) for number in range(30)]
    for space, path in zip(spaces, paths, strict=True):
        one.index.hold(space, path, W)
    await until(
        lambda: all(
            other.index.match(space, path).confirmed == {W: 2}
            for space, path in zip(spaces, paths, strict=True)
        )
    )
    # Of both, the lines for calls and those that listen, to every server.
    assert all(door.taken >= 4 for door in doors)
    for each in (one, other):
        await each.close()


async def test_a_certificate_of_an_unknown_authority_is_refused_unless_it_is_not_to_be_checked(doors, pair):
    address_of = f"rediss+cluster://127.0.0.1:{doors[0].port}"
    suspicious = ScriptCaller(address_of)
    with pytest.raises(RedisDown, match=r"(?i)certificate"):
        await suspicious.call(APPEND, ["a"], [1])
    await suspicious.close()
    trusting = ScriptCaller(f"{address_of}?ssl_cert_reqs=none")
    assert await trusting.call(APPEND, ["a"], [1]) == 1
    await trusting.close()


async def test_one_server_is_reached_through_tls(own_valkey, pair, tmp_path):
    port, bus = free_ports(2)
    alone = Node(tmp_path / "alone", port, bus, ["--cluster-enabled", "no"])
    alone.start()
    try:
        async with TlsTerminator(port, *pair) as door:
            caller = ScriptCaller(f"rediss://127.0.0.1:{door.port}?ssl_ca_certs={pair[0]}")
            assert await caller.call(APPEND, ["a"], [1]) == 1
            await caller.close()
    finally:
        alone.kill()


async def test_a_server_with_tls_of_its_own_is_reached(pair, tmp_path):
    cert, key = pair
    port = free_port()
    command = [server_binary(), "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert)]
    command += ["--tls-auth-clients", "no", "--dir", str(tmp_path), "--logfile", "log"]
    server = await asyncio.to_thread(
        subprocess.Popen, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    caller = ScriptCaller(f"rediss://127.0.0.1:{port}?ssl_ca_certs={cert}")
    try:
        for _ in range(100):
            if server.poll() is not None:
                pytest.skip(f"{server_binary()} is built without TLS; the doors of the other tests speak it")
            try:
                assert await caller.call(APPEND, ["a"], [1]) == 1
                break
            except RedisDown:
                await asyncio.sleep(0.05)
        else:
            raise AssertionError("it does not answer")
    finally:
        await caller.close()
        server.kill()
        server.wait()
