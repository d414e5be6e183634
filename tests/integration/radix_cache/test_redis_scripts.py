"""Scripts on a real Valkey: batched, loaded when unknown, failed cleanly when it is away."""

import asyncio
import contextlib
import gc
import signal

import pytest
import redis.asyncio as redis

from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.quota_store import (
    Cost,
    IdempotencyKey,
    Lease,
    QuotaStoreUnavailable,
    RepeatedReservationRefused,
    Reservation,
)
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window
from radix_cache.redis.call import RedisDown, Script
from radix_cache.redis.scripts import ScriptCaller

ECHO = Script.from_text("#!lua\nreturn tonumber(ARGV[1])")
SLOW = Script.from_text("#!lua\nlocal n = 0\nfor i = 1, tonumber(ARGV[1]) do n = n + i end\nreturn n % 7")
BROKEN = Script.from_text("#!lua\nreturn redis.call('NOPE')")


@pytest.fixture
async def scripts(own_valkey):
    caller = ScriptCaller(own_valkey.url)
    yield caller
    await caller.close()


async def test_many_callers_each_get_their_own_answer(scripts):
    answers = await asyncio.gather(*(scripts.call(ECHO, [], [number]) for number in range(500)))
    assert answers == list(range(500))


async def test_one_broken_script_in_a_batch_fails_alone(scripts):
    good, bad, also_good = (scripts.call(script, [], [5]) for script in (ECHO, BROKEN, ECHO))
    assert (await good, await also_good) == (5, 5)
    with pytest.raises(RedisDown, match=r"Unknown (Redis )?command"):
        await bad


async def test_a_server_that_lost_its_scripts_gets_them_again(scripts, own_valkey):
    assert await scripts.call(ECHO, [], [1]) == 1
    own_valkey.kill()
    own_valkey.start()
    assert await scripts.call(ECHO, [], [2]) == 2


async def test_a_server_that_is_away_fails_the_call_and_not_the_caller(scripts, own_valkey):
    own_valkey.kill()
    with pytest.raises(RedisDown):
        await scripts.call(ECHO, [], [1])
    with pytest.raises(RedisDown):
        await scripts.ping()
    own_valkey.start()
    assert await scripts.call(ECHO, [], [3]) == 3


async def test_a_caller_that_leaves_disturbs_no_other(scripts):
    leaving = asyncio.ensure_future(scripts.call(SLOW, [], [3_000_000]))
    staying = scripts.call(ECHO, [], [4])
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 4


async def test_too_many_waiting_calls_are_refused(scripts, monkeypatch):
    await scripts.call(ECHO, [], [1])
    monkeypatch.setattr("radix_cache.redis.scripts.CALLS_WAITING_MAX", 3)
    calls = [scripts.call(ECHO, [], [1]) for _ in range(5)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["int"] * 3 + ["RedisDown"] * 2


def reservation(name, organisation="late"):
    limit = Limit(unit="requests", amount=1, window=Window(seconds=3600))
    scope = Scope(name="t", limits=(limit, concurrency(1)))
    return Reservation(id=name, organisation=organisation, scopes=(scope,), cost=Cost(prompt_tokens=1))


async def test_a_decision_that_came_too_late_is_given_back(scripts, own_valkey):
    """The caller stops waiting while Valkey is stopped; the reservation must not stay."""
    patient, hasty = RedisQuotaStore(scripts, 10.0), RedisQuotaStore(scripts, 0.02)
    assert await scripts.call(ECHO, [], [1]) == 1
    own_valkey.signal(signal.SIGSTOP)
    with pytest.raises(QuotaStoreUnavailable, match="in time"):
        await hasty.reserve(reservation("late"))
    own_valkey.signal(signal.SIGCONT)
    while scripts.busy:
        await asyncio.sleep(0.001)
    assert isinstance(await patient.reserve(reservation("next")), Lease)


async def test_a_caller_that_is_cancelled_leaves_no_reservation(scripts):
    store = RedisQuotaStore(scripts, 10.0)
    asking = asyncio.create_task(store.reserve(reservation("gone", "cancelled")))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    while scripts.busy:
        await asyncio.sleep(0.001)
    assert isinstance(await store.reserve(reservation("next", "cancelled")), Lease)


@pytest.mark.parametrize("silent_seconds", [0.0, 0.3])
async def test_calls_made_before_the_close_are_done(scripts, own_valkey, silent_seconds):
    """Nothing waits for the release of a lease; else it would stay until it is no longer renewed."""
    closing = ScriptCaller(own_valkey.url)
    store = RedisQuotaStore(closing, 10.0)
    lease = await store.reserve(reservation("held", "closed"))
    if silent_seconds:
        own_valkey.signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(silent_seconds, own_valkey.signal, signal.SIGCONT)
    store.release(lease)
    await closing.close()
    assert isinstance(await RedisQuotaStore(scripts, 10.0).reserve(reservation("next", "closed")), Lease)


async def test_a_server_that_stays_silent_does_not_keep_a_client_from_closing(own_valkey, monkeypatch):
    monkeypatch.setattr("radix_cache.redis.scripts.CLOSE_SECONDS_MAX", 0.05)
    closing = ScriptCaller(own_valkey.url)
    assert await closing.call(ECHO, [], [1]) == 1
    own_valkey.signal(signal.SIGSTOP)
    unanswered = closing.call(ECHO, [], [2])
    await closing.close()
    with pytest.raises(RedisDown, match="closed"):
        await unanswered
    own_valkey.signal(signal.SIGCONT)


async def test_a_lease_that_is_not_renewed_frees_its_concurrency(scripts, monkeypatch):
    """The gateway that held it has died."""
    dying, living = RedisQuotaStore(scripts, 10.0), RedisQuotaStore(scripts, 10.0)
    endless = Limit(unit="requests", amount=100, window=Window(seconds=3600))

    def ask(name):
        scope = Scope(name="t", limits=(endless, concurrency(1)))
        return Reservation(id=name, organisation="died", scopes=(scope,), cost=Cost(prompt_tokens=1))

    lease = await dying.reserve(ask("a"))
    assert not isinstance(await living.reserve(ask("b")), Lease)
    monkeypatch.setattr("gateway.quotas.redis_store.LEASE_MS", 20)
    await dying.renew([lease])
    await asyncio.sleep(0.1)
    assert isinstance(await living.reserve(ask("c")), Lease)


async def test_what_a_dead_gateway_has_reserved_stays_charged_and_a_late_settlement_gives_nothing_back(
    scripts, monkeypatch
):
    monkeypatch.setattr("gateway.quotas.redis_store.LEASE_MS", 60)
    store = RedisQuotaStore(scripts, 10.0)
    scope = Scope(name="t", limits=(Limit(unit="total_tokens", amount=100, window=Window(seconds=1e6)),))

    def ask(name, tokens):
        cost = Cost(prompt_tokens=tokens)
        return Reservation(id=name, organisation="dead", scopes=(scope,), cost=cost)

    less, more, never = [await store.reserve(ask(name, 20)) for name in ("less", "more", "never")]
    await asyncio.sleep(0.1)
    await store.settle(less, Cost(prompt_tokens=5))
    await store.settle(more, Cost(prompt_tokens=25))
    await store.release(never)
    assert (await store.reserve(ask("probe", 0))).limit_statuses[0].remaining == 100 - 20 - 25 - 20


async def test_a_request_whose_gateway_died_may_be_repeated_and_what_it_reserved_stays_charged(
    scripts, monkeypatch
):
    dying, living = RedisQuotaStore(scripts, 10.0), RedisQuotaStore(scripts, 10.0)
    limit = Limit(unit="total_tokens", amount=100, window=Window(seconds=1e6))
    scope = Scope(name="t", limits=(limit, concurrency(1)))

    def ask(name, once=None):
        cost = Cost(prompt_tokens=30)
        return Reservation(id=name, organisation="died too", scopes=(scope,), cost=cost, idempotency_key=once)

    key = IdempotencyKey(name="key", fingerprint="f")
    first = await dying.reserve(ask("first", key))
    with pytest.raises(RepeatedReservationRefused):
        await living.reserve(ask("second", key))
    monkeypatch.setattr("gateway.quotas.redis_store.LEASE_MS", 20)
    await dying.renew([first])
    await asyncio.sleep(0.1)
    monkeypatch.undo()
    lease = await living.reserve(ask("second", key))
    await living.settle(lease, Cost(prompt_tokens=40))
    assert (await living.reserve(ask("probe"))).limit_statuses[0].remaining == 0


async def test_answers_come_in_the_order_of_the_calls(scripts):
    order = []
    for number in range(50):
        script = SLOW if number % 7 == 0 else ECHO
        scripts.call(script, [], [number * 100]).add_done_callback(
            lambda _, number=number: order.append(number)
        )
    await scripts.call(ECHO, [], [0])
    assert order == list(range(50))


async def test_calls_under_way_when_the_connection_breaks_are_made_again(scripts, own_valkey):
    assert await scripts.call(ECHO, [], [1]) == 1
    calls = [scripts.call(ECHO, [], [number]) for number in range(20)]
    scripts._redis._connection._transport.abort()
    assert await asyncio.gather(*calls) == list(range(20))


async def test_scripts_that_were_flushed_are_loaded_again(scripts, own_valkey):
    assert await scripts.call(ECHO, [], [1]) == 1
    async with redis.from_url(own_valkey.url) as client:
        await client.script_flush()
    assert await asyncio.gather(*(scripts.call(ECHO, [], [number]) for number in range(5))) == list(range(5))


async def test_a_server_that_falls_silent_fails_the_calls(scripts, own_valkey, monkeypatch):
    monkeypatch.setattr("radix_cache.redis.connection.SILENCE_SECONDS_MAX", 0.2)
    assert await scripts.call(ECHO, [], [1]) == 1
    own_valkey.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(RedisDown, match="no answer"):
            await scripts.call(ECHO, [], [1])
    finally:
        own_valkey.process.send_signal(signal.SIGCONT)
    assert await scripts.call(ECHO, [], [2]) == 2


async def test_a_password_and_a_database_are_given(own_valkey):
    async with redis.from_url(own_valkey.url) as client:
        await client.config_set("requirepass", "s e/cret")
    where = ScriptCaller(f"unix://:s%20e%2Fcret@{own_valkey.socket}?db=3")
    database = Script.from_text("#!lua\nredis.call('SET', KEYS[1], 'x') return 3")
    assert await where.call(database, ["here"], []) == 3
    await where.close()
    async with redis.from_url(own_valkey.url, password="s e/cret", db=3) as client:
        assert await client.get("here") == b"x"
    wrong = ScriptCaller(f"unix://:wrong@{own_valkey.socket}")
    with pytest.raises(RedisDown, match="AUTH"):
        await wrong.call(ECHO, [], [1])
    await wrong.close()


async def test_a_lease_that_redis_has_lost_is_there_again_after_its_heartbeat(scripts, own_valkey):
    store = RedisQuotaStore(scripts, 10.0)
    endless = Limit(unit="requests", amount=100, window=Window(seconds=3600))
    scope = Scope(name="t", limits=(endless, concurrency(1)))

    def ask(name):
        return Reservation(id=name, organisation="lost", scopes=(scope,), cost=Cost(prompt_tokens=1))

    lease = await store.reserve(ask("a"))
    async with redis.from_url(own_valkey.url) as client:
        await client.flushall()
    await store.renew([lease])
    assert not isinstance(await store.reserve(ask("b")), Lease)
    await store.settle(lease, Cost(prompt_tokens=1))
    assert isinstance(await store.reserve(ask("c")), Lease)


async def test_a_server_that_answers_but_cannot_write_is_not_back(scripts, own_valkey):
    store = RedisQuotaStore(scripts, 10.0)
    await store.check()
    async with redis.from_url(own_valkey.url) as client:
        await client.config_set("maxmemory", "1")
        await scripts.ping()
        with pytest.raises(RedisDown, match="OOM"):
            await store.check()
        await client.config_set("maxmemory", "0")
    await store.check()


async def test_a_decision_that_fails_leaves_no_reference_cycle(scripts, own_valkey):
    """The error of a future refers to the frames that it passed, and must find no reference back there."""
    store = RedisQuotaStore(scripts, 10.0)
    await scripts.ping()
    own_valkey.kill()
    gc.collect()
    gc.disable()
    try:
        for number in range(3):
            with contextlib.suppress(QuotaStoreUnavailable):
                await store.reserve(reservation(f"fails {number}"))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [each for each in gc.garbage if isinstance(each, RedisDown | Reservation)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
