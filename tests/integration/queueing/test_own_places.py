"""Places that a gateway gives without asking Redis, on a real Valkey: bounds, reports, and what ends them."""

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.own_places import FREE_SECONDS, OWN_MS, OWN_SHARE
from gateway.queueing.shared.queue_messages import SharedRoute, WorkerRoom
from policies.others_load import NO_TOTALS, LoadTotals
from policies.queueing.protocol import Ticket
from tests.fakes.clock import FakeClock
from tests.fakes.queue_members import WINDOW, member, until

SHORT = [SharedRoute("w0", 1, 1.0)]
WHOLE_WINDOW = [SharedRoute("w0", WINDOW, 1.0)]
PART = int(OWN_SHARE * WINDOW / 2)
"""The part of a window of one of two gateways."""
numbers = itertools.count()


@pytest.fixture
async def two(redis_url, tmp_path):
    """Two gateways that know of each other, each with what it was told."""
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(redis_url, tmp_path.name)) for _ in range(2)]
        await until(lambda: all(queue.shared for queue, _ in members))
        yield members


def new_ticket(queue, cost=1.0, tenant="a"):
    ticket = Ticket(number=next(numbers), tenant=tenant, cost=cost, arrived_at=0.0)
    return queue.ticket(ticket, "m", kv_tokens=1), ticket


async def asked(queue, routes=SHORT, tenant="a"):
    """A request that Redis has placed."""
    shared, ticket = new_ticket(queue, tenant=tenant)
    await queue.turn(shared, ticket, lambda: routes, lambda: None)
    return shared


async def waiting(queue, routes=WHOLE_WINDOW, tenant="a"):
    """A request that waits for its turn."""
    (shared, ticket), told = new_ticket(queue, tenant=tenant), asyncio.Event()
    task = asyncio.create_task(queue.turn(shared, ticket, lambda: routes, told.set))
    await told.wait()
    return shared, task


def given(queue, tokens=1, *, ahead=0, ms_per_token=0.1, cost=1.0, tenant="a"):
    """The ticket of a place that the gateway gave by itself; None if it gave none."""
    if not queue.may_give("m"):
        return None
    shared, _ = new_ticket(queue, cost, tenant)
    return shared if queue.give(shared, "w0", tokens, WorkerRoom(ahead, WINDOW, ms_per_token)) else None


def load(house):
    """What a gateway was told that the others have on the worker."""
    return house.loads.get("w0", NO_TOTALS)


async def test_a_gateway_gives_places_by_itself_once_redis_reports_that_no_request_waits(two):
    (one, _), (other, house) = two
    assert given(one) is None
    one.leave(await asked(one), 0.0)
    placed = given(one, 3)
    assert placed is not None
    await until(lambda: load(house) == LoadTotals(3, 1, 1))
    one.note_first_token(placed)
    await until(lambda: load(house) == LoadTotals(0, 1, 1))
    assert one.leave(placed, 0.0), "its cost is corrected in Redis"
    await until(lambda: load(house) == LoadTotals(0, 0, 0))
    assert given(other) is None, "Redis has not told the other gateway that no request waits"


async def test_a_report_of_redis_holds_for_a_limited_time(redis_url, tmp_path):
    clock = FakeClock()
    clock.advance(100.0)
    async with member(redis_url, tmp_path.name, clock=clock) as (one, _), member(redis_url, tmp_path.name):
        await until(lambda: one.shared)
        await asked(one)
        assert given(one) is not None
        clock.advance(FREE_SECONDS)
        assert given(one) is None


async def test_together_gateways_fill_no_more_than_their_share_of_a_window_that_redis_lacks(two):
    queues = [queue for queue, _ in two]
    for queue in queues:
        await asked(queue)
    # Nothing is reported before the loop runs again.
    placed = [[given(queue) for _ in range(WINDOW)] for queue in queues]
    assert [sum(each is not None for each in of) for of in placed] == [PART, PART]
    # A prompt that is computed leaves space, and so does an answer of Redis.
    queues[0].note_first_token(placed[0][0])
    assert given(queues[0]) is not None
    await until(lambda: given(queues[1]) is not None)


async def test_a_long_prompt_and_a_busy_worker_are_left_to_redis(two):
    (one, _), _ = two
    await asked(one)
    assert given(one, PART + 1) is None
    assert given(one, 5, ms_per_token=OWN_MS / 4) is None
    assert given(one, ahead=int(OWN_SHARE * WINDOW)) is None
    assert given(one, PART) is not None


async def test_a_gateway_gives_no_places_while_a_request_waits_at_another_one(two):
    (one, _), (other, _) = two
    full = await asked(other, WHOLE_WINDOW)
    assert given(other) is not None
    await asked(one, [SharedRoute("w1", 1, 1.0)])
    _, waits = await waiting(other)
    assert given(other) is None, "it knows of its own request at once"
    # The first report after that says so.
    await until(lambda: given(one, tenant="b") is None)
    other.leave(full, 0.0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)


async def test_the_end_of_a_place_gives_the_turn_to_a_request_that_waits_at_another_gateway(two):
    (one, _), (other, house) = two
    await asked(one, [SharedRoute("w1", 1, 1.0)])
    placed = [given(one) for _ in range(PART)]
    await until(lambda: load(house).tokens_queued == PART)
    _, waits = await waiting(other)
    for shared in placed:
        one.leave(shared, 0.0)
    assert (await asyncio.wait_for(waits, 60)).worker == "w0"


async def test_a_tenant_is_charged_for_places_as_for_turns(two):
    (one, house), (other, told) = two
    await asked(other, tenant="b")
    virtual_time, _ = told.tags["m", "b"]
    await asked(one, tenant="other")
    placed = [given(one, cost=10.0, tenant="c") for _ in range(3)]
    await until(lambda: ("m", "c") in house.tags)
    assert house.tags["m", "c"][1] == pytest.approx(virtual_time + 30.0)
    for shared in placed:
        one.leave(shared, 2.0)
    await until(lambda: house.tags["m", "c"][1] == pytest.approx(virtual_time + 36.0))


async def test_places_of_a_gateway_that_leaves_are_free_at_once_and_their_cost_is_charged(
    redis_url, tmp_path
):
    async with member(redis_url, tmp_path.name) as (other, _):
        async with member(redis_url, tmp_path.name) as (one, _):
            await until(lambda: one.shared and other.shared)
            await asked(one)
            assert given(one, 5, cost=7.0, tenant="c") is not None
        assert (await other._store.beat(["m"], 3000)).loads == {}
        shared, _ = new_ticket(other, cost=0.0, tenant="c")
        assert (await other._store.admit(shared, SHORT)).finish >= 7.0


async def test_places_of_a_gateway_that_died_are_free_once_its_lease_is_over(two):
    (one, _), (other, house) = two
    await asked(one, [SharedRoute("w1", 1, 1.0)])
    given(one, 5)
    await until(lambda: load(house) == LoadTotals(5, 1, 1))
    reply = await other._store.reap(["m"], one.gateway, ahead_ms=10**9)
    assert reply.gateways == 1
    assert (await other._store.beat(["m"], 3000)).loads == {}


async def test_places_are_known_by_their_tickets_after_redis_was_away(own_valkey):
    async with (
        member(own_valkey.url, "away") as (one, _),
        member(own_valkey.url, "away") as (other, house),
    ):
        await until(lambda: one.shared and other.shared)
        await asked(one, [SharedRoute("w1", 1, 1.0)])
        placed = given(one, 5)
        assert placed is not None
        own_valkey.kill()
        await until(lambda: not one.membership.up)
        assert given(one) is None
        own_valkey.start()
        await until(lambda: one.shared and other.shared)
        await until(lambda: load(house) == LoadTotals(5, 1, 1))
        assert placed.id in one.membership.known_ids
        one.leave(placed, 0.0)
        await until(lambda: load(house) == LoadTotals(0, 0, 0))


async def test_in_a_cell_redis_gives_all_places(redis_url, tmp_path):
    async with (
        member(redis_url, tmp_path.name, in_cell=True) as (one, _),
        member(redis_url, tmp_path.name, in_cell=True),
    ):
        await until(lambda: one.shared)
        await asked(one)
        assert given(one) is None


async def test_nothing_is_left_in_redis_when_all_places_have_ended(two, tmp_path):
    (one, _), _ = two
    one.leave(await asked(one), 0.0)
    placed = [given(one) for _ in range(5)]
    await until(lambda: one._places.sums.unreported_tokens("w0") == 0)
    for shared in placed:
        one.leave(shared, 0.0)
    _, loads, places, owned, *_ = QueueKeys(tmp_path.name).of([])
    ask = one._store._scripts.ask
    async with asyncio.timeout(60):
        while await ask("HLEN", loads) or await ask("HLEN", places) or await ask("ZCARD", owned):
            await asyncio.sleep(0.002)
