"""The shared queue as a gateway uses it, on a real Valkey: members, waiting requests, and gateways that leave."""

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest
import redis.asyncio as redis

from gateway.domain.errors import NoWorker
from gateway.queueing.shared.keys import QueueKeys
from gateway.queueing.shared.membership import LATE_MAX, LATE_SECONDS, STEADY_SECONDS
from gateway.queueing.shared.queue_messages import SharedRoute
from gateway.queueing.shared.turn_requests import TurnLost
from gateway.queueing.shared.turn_stream import COUNT, TurnReader
from policies.queueing.estimate_ages import AGE_SECONDS
from policies.queueing.protocol import Ticket
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.clock import FakeClock
from tests.fakes.queue_members import WINDOW, member, until

pytestmark = pytest.mark.usefixtures("long_leases")

ROUTES = [SharedRoute("w0", WINDOW, 1.0)]
numbers = itertools.count()


@pytest.fixture
async def two(redis_url, tmp_path):
    """Two that know of each other."""
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(redis_url, tmp_path.name)) for _ in range(2)]
        (one, _), (other, _) = members
        await until(lambda: one.shared and other.shared)
        yield one, other


def asks(queue, routes=lambda: ROUTES):
    """A request asks for its turn: its ticket, and the task that waits for its place."""
    ticket = Ticket(number=next(numbers), tenant="a", cost=1.0, arrived_at=0.0)
    shared = queue.ticket(ticket, "m", kv_tokens=1)
    return shared, asyncio.create_task(queue.turn(shared, ticket, routes, lambda: None))


async def waiting(queue, routes=lambda: ROUTES):
    """One that has been told that it has to wait."""
    told, before = asyncio.Event(), len(queue)
    ticket = Ticket(number=next(numbers), tenant="a", cost=1.0, arrived_at=0.0)
    shared = queue.ticket(ticket, "m", kv_tokens=1)
    task = asyncio.create_task(queue.turn(shared, ticket, routes, told.set))
    await told.wait()
    assert len(queue) == before + 1
    return shared, task


async def test_a_gateway_alone_makes_no_calls_and_two_share_until_one_leaves(redis_url, tmp_path):
    async with member(redis_url, tmp_path.name) as (one, house):
        await until(lambda: one.membership.up)
        assert (one.shared, one.gateways, one.membership.share_of(1000)) == (False, 1, 1000)
        with pytest.raises(TurnLost):
            await asks(one)[1]
        async with member(redis_url, tmp_path.name) as (other, _):
            await until(lambda: one.shared and other.shared)
            assert (one.gateways, one.membership.share_of(1000), house.moves) == (2, 1000, 1)
        await until(lambda: not one.shared)
        assert (one.gateways, house.moves) == (1, 2)


async def test_placements_are_announced_to_a_gateway_that_joins_and_freed_when_one_leaves(
    redis_url, tmp_path
):
    async with (
        member(redis_url, tmp_path.name) as (one, _),
        member(redis_url, tmp_path.name) as (other, house),
    ):
        await until(lambda: one.shared and other.shared)
        shared, task = asks(one)
        assert (await task).worker == "w0"
        await until(lambda: house.loads and house.loads["w0"].tokens_queued == WINDOW)
        _, waits = await waiting(other)
        one.leave(shared, 0.0)
        assert (await waits).worker == "w0"
        await until(lambda: house.loads["w0"].tokens_queued == 0)


async def test_without_redis_each_has_its_part_and_waiting_requests_enter_again(own_valkey):
    async with (
        member(own_valkey.url, "away") as (one, house),
        member(own_valkey.url, "away") as (other, _),
    ):
        await until(lambda: one.shared and other.shared)
        await asks(one)[1]
        _, waits = await waiting(one)
        own_valkey.kill()
        with pytest.raises(TurnLost):
            await waits
        assert (one.shared, one.membership.share_of(1000), house.moves) == (False, 500, 2)
        own_valkey.start()
        await until(lambda: one.shared and other.shared)
        # What it holds was told, though that Redis had heard nothing of it.
        _, waits = await waiting(other)
        waits.cancel()


async def test_a_request_that_left_before_its_next_call_leaves_no_name_behind(two):
    one, _ = two
    placed, task = asks(one)
    await task
    for _ in range(3):
        _, leaves = asks(one)
        await asyncio.sleep(0)  # Redis is being asked.
        leaves.cancel()
        one.requests.ask_again()
    one.leave(placed, 0.0)
    _, last = asks(one)
    await last  # By then all that was asked before is answered.
    assert len(one.membership.known_ids) == 1


@pytest.mark.parametrize("when", ["its routes have changed", "its turn has come", "it gets another's turn"])
async def test_a_wait_ends_with_what_its_routes_raise_and_the_next_has_its_turn(two, when):
    one, other = two
    fails = []

    def routes():
        if fails:
            raise fails[0]
        return ROUTES

    placed, task = asks(one)
    await task
    if when == "it gets another's turn":
        # Of a tenant's tickets that one goes first which came first; in Redis this one stands behind the next.
        number = next(numbers)
        _, behind = await waiting(one)
        ticket = Ticket(number=number, tenant="a", cost=1.0, arrived_at=-1.0)
        told = asyncio.Event()
        waits = asyncio.create_task(one.turn(one.ticket(ticket, "m", kv_tokens=1), ticket, routes, told.set))
        await told.wait()
    else:
        _, waits = await waiting(one, routes)
        _, behind = await waiting(other)
    fails.append(ZeroDivisionError())
    if when == "its routes have changed":
        one.requests.ask_again()
    else:
        one.leave(placed, 0.0)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(waits, 60)
    if when == "its routes have changed":
        one.leave(placed, 0.0)
    assert (await asyncio.wait_for(behind, 60)).worker == "w0"


async def test_where_no_worker_is_left_no_request_waits_for_one(two):
    one, _ = two
    routes = list(ROUTES)
    await asks(one)[1]
    _, waits = await waiting(one, lambda: routes)
    routes.clear()
    one.requests.ask_again()
    with pytest.raises(NoWorker):
        await waits


@pytest.mark.parametrize(("entries", "times"), [(COUNT - 1, 1), (COUNT + 1, 2)])
async def test_a_reader_far_behind_requests_turns_that_the_stream_may_have_dropped(valkey, entries, times):
    scripts, keys, missed, heard = ScriptCaller(valkey.url), QueueKeys(f"behind{entries}"), [], []
    reader = TurnReader(
        scripts,
        keys.turns,
        on_turn=heard.append,
        on_gateways=lambda: None,
        on_missed=lambda: missed.append(len(heard)),
        handlers={},
    )
    task = asyncio.create_task(reader.run())
    await until(lambda: missed)
    async with redis.from_url(valkey.url) as client, client.pipeline(transaction=True) as at_once:
        for number in range(entries):
            at_once.xadd(keys.turns, {"turn": str(number)})
        await at_once.execute()
        await until(lambda: len(heard) == entries)
        await client.xadd(keys.turns, {"turn": "last"})
    await until(lambda: len(heard) == entries + 1)
    assert missed == [0, entries][:times]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await scripts.close()


async def test_a_redis_that_is_away_again_and_again_is_joined_later_each_time(redis_url, tmp_path):
    clock, waits = FakeClock(), []
    clock.advance(100.0)
    async with member(redis_url, tmp_path.name, clock=clock) as (queue, _):
        joined = queue.membership
        await until(lambda: joined.up)
        clock.advance(STEADY_SECONDS + 0.1)
        joined.go_away("for once")
        await until(lambda: joined.up)
        for _ in range(4):
            joined.go_away("again")
            waited = 0.0
            while not joined.up:
                # The loop looks at the clock four times a second; the clock moves when it has not joined.
                await asyncio.sleep(0.3)
                if not joined.up:
                    clock.advance(0.25)
                    waited += 0.25
            waits.append(waited)
        clock.advance(STEADY_SECONDS + 0.1)
        joined.go_away("long after")
        await until(lambda: joined.up)
    assert all(waited >= least for waited, least in zip(waits, (0.25, 0.5, 1.0, 2.0), strict=True))


async def test_a_gateway_away_for_longer_keeps_no_turns_from_requests_at_other_gateways(valkey, tmp_path):
    clock = FakeClock()
    clock.advance(100.0)
    async with (
        member(valkey.url, tmp_path.name, clock=clock) as (one, _),
        member(valkey.url, tmp_path.name) as (other, _),
    ):
        await until(lambda: one.shared and other.shared)
        held, task = asks(other)
        await task
        gone = [await waiting(one) for _ in range(3)]
        _, waits = await waiting(other)
        decided = one.membership.await_decision
        for _ in range(2 * LATE_MAX):
            assert await decided(too_late()) is None
        assert one.membership.up, "one stall made them all late"
        clock.advance(LATE_SECONDS)
        assert await decided(too_late()) is None
        assert not one.membership.up
        for _, each in gone:
            with pytest.raises(TurnLost):
                await each
        keys, names = QueueKeys(tmp_path.name), {shared.id for shared, _ in gone}
        client = redis.from_url(valkey.url, decode_responses=True)
        async with asyncio.timeout(60):
            while names & set(await client.zrange(keys.of([])[3], 0, -1)):
                await asyncio.sleep(0.002)
        other.leave(held, 0.0)
        assert (await waits).worker == "w0"
        entries = await client.xrange(keys.turns)
        await client.aclose()
    assert not names & {fields.get("turn") for _, fields in entries}


async def too_late():
    raise TimeoutError


async def test_a_first_token_is_reported_unless_its_request_ends_at_once_and_urgently_while_others_wait(
    two, monkeypatch
):
    one, _ = two
    reported = []
    first_token = one._store.first_token

    async def report(queues, id, *, urgent):
        reported.append((id, urgent))
        return await first_token(queues, id, urgent=urgent)

    monkeypatch.setattr(one._store, "first_token", report)
    whole, placed = asks(one)
    await placed
    one.note_first_token(whole)
    one.leave(whole, 0.0)
    stream, placed = asks(one)
    await placed
    one.note_first_token(stream)
    await until(lambda: reported)
    assert reported == [(stream.id, False)]
    full, placed = asks(one)
    await placed
    _, waits = await waiting(one)
    one.note_first_token(full)
    await waits
    assert reported[1:] == [(full.id, True)]
    one.leave(stream, 0.0)


async def test_a_request_whose_prefix_was_computed_while_it_waited_needs_only_the_room_that_is_left(two):
    one, _ = two
    half = [SharedRoute("w0", WINDOW // 2, 1.0)]
    placed = [asks(one, lambda: half) for _ in range(2)]
    for _, task in placed:
        await task
    now = ROUTES
    _, waits = await waiting(one, lambda: now)
    now = half
    await asyncio.sleep(2 * AGE_SECONDS)
    one.note_first_token(placed[0][0])
    assert (await waits).uncached_tokens == WINDOW // 2
