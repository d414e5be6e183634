"""Which waiting requests the shared queue examines when it gives turns, and what that costs the server."""

import itertools

import pytest

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.queue_messages import SharedRoute, SharedTicket
from gateway.queueing.shared.queue_store import QueueStore
from policies.admission.search_bounds import (
    PASSED_OVER_MAX,
    PASSED_OVER_OF_FLEET_MAX,
    PASSED_OVER_OF_FLOW_MAX,
)
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow

WINDOW = 100
GATEWAY = "0" * 16
FULL, FREE = [SharedRoute("full", 50, 1.0)], [SharedRoute("free", 50, 1.0)]


class Queue:
    """The calls of one gateway, with requests of equal cost; `served` lists the requests in the order of turns."""

    def __init__(self, scripts, prefix, hold=0.0):
        self.windows = FixedWindow(WINDOW, passed_over_max=PASSED_OVER_OF_FLEET_MAX)
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

    async def commands_of_a_search(self):
        """The commands of one search by name, but for the call itself."""
        await self._scripts.ask("CONFIG", "RESETSTAT")
        await self.store.expire(["m"])
        stats = (await self._scripts.ask("INFO", "commandstats")).decode()
        return {
            line.split(":")[0].removeprefix("cmdstat_"): int(line.split("calls=")[1].split(",")[0])
            for line in stats.splitlines()
            if line.startswith("cmdstat_") and "config" not in line
        }

    async def looks(self):
        """How many requests one search looks at."""
        return (await self.commands_of_a_search())["hget"] - 1

    async def forgets(self):
        """Stands as if another server had been the primary for a while."""
        await self._scripts.ask("HSET", self.store.keys.of(["m"])[7], "m", "another server")

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
async def test_requests_that_wait_for_their_worker_hold_up_no_other_however_many_they_are(queue, each):
    for at in range(5 * PASSED_OVER_MAX):
        assert await queue.asks(f"t{at // each}", FULL) == 0
    assert await queue.asks("behind", FREE) == 1


async def test_a_request_that_was_passed_over_is_not_looked_at_until_its_worker_changes(queue):
    for at in range(5):
        assert await queue.asks(f"t{at}", FULL) == 0
    assert await queue.asks("elsewhere", FREE) == 1
    assert await queue.looks() == 0
    await queue.ends(0)
    assert await queue.served() == [1, 2]
    assert await queue.looks() == 0


async def test_one_search_looks_at_seventeen_and_the_next_one_at_those_behind_them(queue):
    searched = PASSED_OVER_MAX + 1
    for at in range(2 * searched + 2):
        assert await queue.asks(f"t{at}", FULL) == 0
    queue.store.hold = 0.1
    assert [await queue.looks() for _ in range(4)] == [searched, searched, 2, 0]


async def test_what_another_server_has_searched_since_is_looked_at_again(queue):
    for at in range(3):
        assert await queue.asks(f"t{at}", FULL) == 0
    await queue.forgets()
    assert [await queue.looks() for _ in range(2)] == [3, 0]


async def test_a_worker_is_free_for_the_next_when_the_request_that_waits_for_it_leaves(queue):
    """Both wait for a worker with room for the second alone, which does not overtake the first."""
    part = [SharedRoute("part", WINDOW // 2, 1.0)]
    assert await queue.asks("x", part) == 1  # number 1
    assert await queue.asks("a", [SharedRoute("part", WINDOW, 1.0)]) == 0
    assert await queue.asks("b", part) == 0
    assert await queue.looks() == 0
    await queue.ends(2)
    assert await queue.served() == [3]


async def test_no_more_are_passed_over_than_may_be_in_all(queue):
    for at in range(PASSED_OVER_OF_FLEET_MAX + 1):
        assert await queue.asks(f"t{at}", FULL) == 0
    assert await queue.asks("last", FREE) == 0
    await queue.ends(1)
    assert await queue.served() == [PASSED_OVER_OF_FLEET_MAX + 2]


async def test_of_a_tenant_no_more_than_four_are_looked_at(queue):
    for _ in range(PASSED_OVER_OF_FLOW_MAX - 1):
        assert await queue.asks("flood", FULL) == 0
    assert await queue.asks("flood", FREE) == 1
    assert await queue.asks("flood", FULL) == 0
    assert await queue.asks("flood", FREE) == 0
    assert await queue.asks("other", FREE) == 1, "and others behind them are"


async def test_requests_behind_waiting_ones_are_found_again_after_a_turn(queue):
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


async def test_a_request_that_enters_again_is_placed_by_its_routes_of_then(queue):
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
async def test_a_search_in_vain_costs_the_server_a_few_commands(queue, tenants):
    for number in range(300):
        assert await queue.asks(f"t{number % tenants}", FULL) == 0
    commands = await queue.commands_of_a_search()
    assert commands["hget"] == 1, "only one request is looked at"
    assert sum(commands.values()) <= 25


async def test_a_request_that_takes_less_than_its_turn_leaves_the_rest_to_others(queue):
    assert await queue.asks("a", [SharedRoute("full", WINDOW, 1.0)]) == 0
    assert await queue.asks("b", FULL) == 0
    await queue.ends(0)
    assert await queue.served() == [1]
    told = await queue.store.claim(["m"], f"{GATEWAY}:1", None, FULL)
    assert (told.outcome, told.uncached_tokens) == (1, 50)
    assert await queue.served() == [1, 2]


@pytest.mark.parametrize(("tokens", "outcome"), [(WINDOW, 1), (WINDOW + 1, 0)])
async def test_a_crowds_prompt_within_the_wide_window_takes_the_last_idle_worker(queue, tokens, outcome):
    """A longer one has to leave another worker open; both are longer than the crowd's narrow window."""
    queue.windows.window = FixedWindow(WINDOW // 2, WINDOW, WINDOW // 4, counts_own=False).window
    busy = ["full", "busy", "too"]
    for worker in busy[1:]:
        assert await queue.asks("first", [SharedRoute(worker, WINDOW, 1.0)]) == 1
    for _ in range(2):
        assert await queue.asks("crowd", FULL) == 0
    everywhere = [SharedRoute(worker, tokens, 1.0) for worker in [*busy, "idle"]]
    assert await queue.asks("crowd", everywhere) == outcome
