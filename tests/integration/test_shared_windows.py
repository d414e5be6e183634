"""What counts of a worker's window where turns are given in Redis: what was sent and cannot be computed by now."""

import itertools
import re
import struct

import pytest

from gateway.queue.keys import QueueKeys
from gateway.queue.store import QueueStore, SharedPlace, SharedRoute, SharedTicket
from policies.latency_model import COMPUTED_MAX, PACE
from radix_cache.redis.call import lua
from radix_cache.redis.scripts import ScriptCaller

WINDOW, KV = 100, 1000
AT_ONCE, NEVER = 1e-12, 1e12
"""Milliseconds per token: done before the next call, and in no test."""

runs = itertools.count()


class Queue:
    """One gateway's; every request has 10 tokens of KV."""

    def __init__(self, scripts):
        self._scripts = scripts
        self._store = QueueStore(scripts, QueueKeys(f"windows{next(runs)}"), "a" * 16, WINDOW)
        self._ids = (f"{self._store.gateway}:{number}" for number in itertools.count())

    async def join(self, *places):
        await self._store.join(["m"], 60_000, "first", places)

    def ticket(self):
        return SharedTicket(id=next(self._ids), queue="m", tenant="t", weight=1.0, cost=1.0, kv_tokens=10)

    async def sent(self, tokens, ms_per_token=AT_ONCE, kv_tokens_max=KV):
        """Asks for a place; None: it waits. Its id."""
        ticket = self.ticket()
        route = SharedRoute("w", tokens, 1.0, 0.0, ms_per_token, kv_tokens_max)
        told = await self._store.admit(ticket, [route])
        return ticket.id if told.outcome == 1 else None

    async def now_us(self):
        seconds, us = await self._scripts.ask("TIME")
        return int(seconds) * 1_000_000 + int(us)

    async def since_us(self):
        """Since when the prefill that is under way has been."""
        packed = await self._scripts.ask("HGET", self._store.keys.of(["m"])[1], "w")
        return struct.unpack("<qqqq", packed)[3]

    async def wrote_before(self, tokens, streams, kv_tokens):
        packed = struct.pack("<qqq", tokens, streams, kv_tokens)
        await self._scripts.ask("HSET", self._store.keys.of(["m"])[1], "w", packed)

    async def first_token(self, id):
        await self._store.first_token(["m"], id)

    async def end(self, id):
        await self._store.end(["m"], id, 0.0)


@pytest.fixture
async def queue(valkey):
    scripts = ScriptCaller(valkey.url)
    queue = Queue(scripts)
    await queue.join()
    yield queue
    await scripts.close()


async def test_a_long_prompt_that_is_nearly_computed_keeps_nobody_out(queue):
    assert await queue.sent(400)
    assert await queue.sent(20), "a fifth of 400 may be left, and 20 more fit beside it"


async def test_a_fifth_of_what_was_sent_counts_until_its_first_token(queue):
    assert await queue.sent(400)
    assert not await queue.sent(21)


@pytest.mark.parametrize("more", [{"ms_per_token": NEVER}, {"ms_per_token": 0.0}, {"kv_tokens_max": 0}])
async def test_a_worker_that_is_slow_or_does_not_say_has_all_of_it_ahead(queue, more):
    assert await queue.sent(100, **more)
    assert not await queue.sent(1, **more)


async def test_where_kv_is_short_nothing_is_held_for_computed(queue):
    assert await queue.sent(100, kv_tokens_max=19)
    assert await queue.sent(10, kv_tokens_max=19)
    assert not await queue.sent(10, kv_tokens_max=19)


@pytest.mark.parametrize("ending", ["first_token", "end"])
async def test_what_is_next_begins_when_a_prefill_is_over(queue, ending):
    first = await queue.sent(90)
    assert await queue.sent(80)
    over_at = await queue.now_us()
    await getattr(queue, ending)(first)
    assert await queue.since_us() > over_at


async def test_what_joins_a_prefill_under_way_does_not_begin_it_anew(queue):
    assert await queue.sent(90)
    sent_at = await queue.now_us()
    assert await queue.sent(80)
    assert await queue.since_us() < sent_at


async def test_a_worker_that_had_nothing_to_compute_begins_when_something_is_sent(queue):
    await queue.first_token(await queue.sent(90))
    idle_at = await queue.now_us()
    assert await queue.sent(80)
    assert await queue.since_us() > idle_at


async def test_what_is_told_at_a_join_is_under_way_from_then_on(queue):
    before = await queue.now_us()
    await queue.join(SharedPlace(ticket=queue.ticket(), worker="w", uncached_tokens=100))
    assert await queue.since_us() > before


async def test_a_load_that_an_earlier_version_wrote_is_read(queue):
    await queue.wrote_before(tokens=80, streams=1, kv_tokens=10)
    assert await queue.sent(20)
    assert not await queue.sent(1, ms_per_token=NEVER)


def test_redis_estimates_with_the_constants_of_the_policies():
    text = lua("gateway.queue", "queue")
    told = re.search(r"PACE, COMPUTED_MAX = ([\d.]+), ([\d.]+)", text)
    assert told is not None
    assert (float(told[1]), float(told[2])) == (PACE, COMPUTED_MAX)
