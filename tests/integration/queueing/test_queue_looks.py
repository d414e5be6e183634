"""Which waiting requests the shared queue examines when it gives turns, and what that costs the server."""

import asyncio
import itertools

import pytest
import redis.asyncio as redis
from msgspec.structs import replace

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.queue_store import QueueStore, SharedRoute, SharedTicket
from policies.admission.dispatch_window import (
    LONG_SEARCH_MS,
    PASSED_OVER_MAX,
    PASSED_OVER_OF_FLOW_MAX,
    passed_over_max,
)
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow

WINDOW = 100
GATEWAY = "0" * 16
FULL, FREE = [SharedRoute("full", 50, 1.0)], [SharedRoute("free", 50, 1.0)]


class Queue:
    """The calls of one gateway, with requests of equal cost; `served` lists the requests in the order of turns."""

    def __init__(self, scripts, prefix, hold=0.0):
        self.windows = FixedWindow(WINDOW)
        self.store = QueueStore(scripts, QueueKeys(prefix), GATEWAY, self.windows, hold)
        self._scripts = scripts
        self._numbers = itertools.count()

    async def asks(self, tenant, routes, number=None):
        """Its outcome: 1, placed; 0, it waits."""
        id = f"{GATEWAY}:{next(self._numbers) if number is None else number}"
        ticket = SharedTicket(id=id, queue="m", tenant=tenant, weight=1.0, cost=10.0, kv_tokens=1)
        return (await self.store.admit(ticket, routes)).outcome

    async def ends(self, number):
        return await self.store.end(["m"], f"{GATEWAY}:{number}", 0.0)

    async def looks_of_two_searches(self):
        """How many requests are looked at in each of two searches, one soon after the other."""
        looks = []
        for _ in range(2):
            await self._scripts.ask("CONFIG", "RESETSTAT")
            await self.store.expire(["m"])
            stats = (await self._scripts.ask("INFO", "commandstats")).decode()
            looks.append(int(stats.split("cmdstat_hget:calls=")[1].split(",")[0]) - 1)
        return tuple(looks)

    async def served(self):
        entries = await self._scripts.ask("XRANGE", self.store.keys.turns, "-", "+")
        return [int(of[1].decode().split(":")[1]) for _, of in entries if of[0] == b"turn"]


@pytest.fixture
async def queue(own_valkey):
    """A worker of it is full: number 0 has it."""
    scripts = ScriptCaller(own_valkey.url)
    made = Queue(scripts, "looks")
    await made.store.join(["m"], 10**7, "first")
    assert await made.asks("first", [SharedRoute("full", WINDOW, 1.0)]) == 1
    yield made
    await scripts.close()


@pytest.mark.parametrize("each", [1, 3, PASSED_OVER_OF_FLOW_MAX])
async def test_behind_sixteen_who_wait_for_their_worker_one_is_looked_at(queue, each):
    for at in range(PASSED_OVER_MAX):
        assert await queue.asks(f"t{at // each}", FULL) == 0
    assert await queue.asks("next", FREE) == 1
    assert await queue.asks("also next", FULL) == 0
    assert await queue.asks("behind", FREE) == 0


async def test_in_a_large_fleet_more_of_those_who_wait_for_their_worker_are_passed_over(queue):
    for at in range(20):
        assert await queue.asks(f"t{at}", FULL) == 0
    assert await queue.asks("behind", FREE) == 0
    queue.windows.window = replace(queue.windows.window, passed_over_max=passed_over_max(500))
    await queue.store.expire(["m"])
    assert await queue.served() == [21]


async def test_long_searches_are_far_apart(queue):
    queue.windows.window = replace(queue.windows.window, passed_over_max=64)
    for at in range(40):
        assert await queue.asks(f"t{at}", FULL) == 0
    async with asyncio.timeout(60):
        while await queue.looks_of_two_searches() != (40, PASSED_OVER_MAX + 1):
            await asyncio.sleep(2 * LONG_SEARCH_MS / 1000)


async def test_of_a_tenant_no_more_than_four_are_looked_at(queue):
    for _ in range(PASSED_OVER_OF_FLOW_MAX - 1):
        assert await queue.asks("flood", FULL) == 0
    assert await queue.asks("flood", FREE) == 1
    assert await queue.asks("flood", FULL) == 0
    assert await queue.asks("flood", FREE) == 0
    assert await queue.asks("other", FREE) == 1, "and others behind them are"


async def test_whoever_comes_behind_those_who_wait_is_found_again_after_a_turn(queue):
    """Of one tenant the second has its turn, and so has the third; another one's is between them."""
    assert await queue.asks("x", [SharedRoute("free", WINDOW, 1.0)]) == 1  # number 1
    for tenant, routes in [("a", FULL), ("a", FREE), ("a", FREE), ("b", FREE), ("b", FULL)]:
        assert await queue.asks(tenant, routes) == 0  # 2 to 6
    await queue.ends(1)
    assert await queue.served() == [3, 5]
    await queue.ends(3)
    assert await queue.served() == [3, 5, 4]
    await queue.ends(0)
    assert await queue.served() == [3, 5, 4, 2, 6]


async def test_who_asks_anew_is_looked_at_by_the_routes_that_it_has_then(queue):
    assert await queue.asks("a", FULL) == 0
    assert await queue.asks("b", FULL) == 0
    assert await queue.asks("a", FREE, number=1) == 1
    assert await queue.asks("b", FULL, number=2) == 0
    assert await queue.asks("b", FREE, number=2) == 1


async def test_a_crowd_of_hundreds_has_one_turn_each_in_the_order_in_which_it_came(queue):
    numbers = range(1, 301)
    for number in numbers:
        # Each record differs from all others.
        assert await queue.asks(f"t{number}", [SharedRoute("full", WINDOW, 1.0 + number)]) == 0
    for number in (0, *numbers):
        await queue.ends(number)
    assert await queue.served() == list(numbers)


@pytest.mark.parametrize("tenants", [1, 3, 300])
async def test_a_look_at_a_crowd_costs_the_server_a_few_commands_for_each_who_is_looked_at(
    queue, own_valkey, tenants
):
    for number in range(300):
        assert await queue.asks(f"t{number % tenants}", FULL) == 0
    async with redis.from_url(own_valkey.url) as client:
        await client.config_resetstat()
        await queue.store.expire(["m"])
        stats = await client.info("commandstats")
    told = {name.removeprefix("cmdstat_"): of["calls"] for name, of in stats.items()}
    looks = min(PASSED_OVER_MAX + 1, tenants * PASSED_OVER_OF_FLOW_MAX)
    assert (told["fcall"], told["hget"]) == (1, looks + 1)
    assert sum(told.values()) <= 3 * looks + 15


async def test_who_takes_less_than_its_turn_leaves_the_rest_to_others(queue):
    assert await queue.asks("a", [SharedRoute("full", WINDOW, 1.0)]) == 0
    assert await queue.asks("b", FULL) == 0
    await queue.ends(0)
    assert await queue.served() == [1]
    told = await queue.store.claim(["m"], f"{GATEWAY}:1", None, FULL)
    assert (told.outcome, told.uncached_tokens) == (1, 50)
    assert await queue.served() == [1, 2]
