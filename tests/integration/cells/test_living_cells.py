"""The list of living cells in a real Redis: leases, gateways that leave, and a Redis that is away."""

import asyncio

import pytest
import redis.asyncio as redis

from gateway.cells.living_cells import LivingCells
from radix_cache.redis.scripts import ScriptCaller


@pytest.fixture
async def made(own_valkey, tmp_path):
    """Make registries of gateways of any cell."""
    scripts, registries = ScriptCaller(own_valkey.url), []

    def make(cell, url="http://10.0.0.1", *, lease_seconds=60.0, serves=lambda: True):
        registries.append(
            LivingCells(scripts, prefix="c", cell=cell, url=url, lease_seconds=lease_seconds, serves=serves)
        )
        return registries[-1]

    yield make
    await scripts.close()


async def test_gateways_have_the_urls_of_all_cells(made):
    one, two, other = made("east"), made("east", "http://10.0.0.2/"), made("west", "http://10.0.0.3")
    for each in (one, two, other, one, two):
        await each.renew()
    everything = {"east": ["http://10.0.0.1", "http://10.0.0.2"], "west": ["http://10.0.0.3"]}
    assert one.cells == two.cells == other.cells == everything
    assert {one.owner_of(f"tenant-{at}") for at in range(50)} == {"east", "west"}
    assert all(one.owner_of(f"t-{at}") == other.owner_of(f"t-{at}") for at in range(50))


async def test_processes_of_one_gateway_are_one_url(made):
    first, second = made("east"), made("east")
    await first.renew()
    await second.renew()
    assert second.cells == {"east": ["http://10.0.0.1"]}
    await second.close()
    await first.renew()
    assert first.cells == {"east": ["http://10.0.0.1"]}


async def test_gateways_that_renew_at_one_moment_share_one_reading_of_all_leases(made, own_valkey):
    gateways = [made("east", f"http://10.0.0.{number}") for number in range(20)]
    for each in gateways:
        await each.renew()
    client = redis.from_url(own_valkey.url)
    before = await readings(client)
    for each in gateways:
        await each.renew()
    assert await readings(client) - before < len(gateways) / 2
    assert all(len(each.cells["east"]) == len(gateways) for each in gateways)
    await client.aclose()


async def readings(client):
    """How often all leases have been read."""
    return (await client.info("commandstats"))["cmdstat_hgetall"]["calls"]


async def test_a_cell_without_a_sign_of_life_is_gone(made):
    one, dead = made("east"), made("west")
    await dead.renew()
    await one.renew()
    theirs = next(name for name in map(str, range(99)) if one.owner_of(name) == "west")
    dead._lease_seconds = 0.2
    await dead.renew()
    async with asyncio.timeout(30):
        while "west" in one.cells:
            await asyncio.sleep(0.05)
            await one.renew()
    assert one.owner_of(theirs) == "east"


async def test_a_gateway_that_drains_leaves_at_once(made):
    one = made("east")
    serves = [True]
    other = made("west", serves=lambda: serves[0])
    await one.renew()
    await other.renew()
    assert set(other.cells) == {"east", "west"}
    serves[0] = False
    await other.renew()
    await one.renew()
    assert one.cells == other.cells == {"east": ["http://10.0.0.1"]}
    assert {one.owner_of(name) for name in map(str, range(20))} == {"east"}


async def test_the_last_list_holds_while_redis_is_away(made, own_valkey):
    one, other = made("east", lease_seconds=5.0), made("west")
    await other.renew()
    await one.renew()
    own_valkey.kill()
    await one.renew()
    assert not one.up
    assert set(one.cells) == {"east", "west"}
    own_valkey.start()
    await one.renew()
    assert one.up
    # It has forgotten all leases; west has time to renew its own.
    assert set(one.cells) == {"east", "west"}
    async with asyncio.timeout(60):
        while set(one.cells) != {"east"}:
            await asyncio.sleep(0.1)
            await one.renew()


async def test_before_the_first_answer_all_tenants_belong_here(made):
    assert made("east").owner_of("any") == "east"


async def test_a_cluster_has_the_list_too(cluster, tmp_path):
    scripts = ScriptCaller(cluster.url)
    gateways = [
        LivingCells(
            scripts, prefix=tmp_path.name, cell=cell, url="http://10.0.0.1", lease_seconds=60, serves=always
        )
        for cell in ("east", "west")
    ]
    for each in (*gateways, *gateways):
        await each.renew()
    assert all(set(each.cells) == {"east", "west"} for each in gateways)
    await scripts.close()


def always():
    return True
