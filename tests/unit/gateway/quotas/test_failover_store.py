"""Quotas while Redis comes and goes: no request is refused for that, and nothing is settled twice or lost."""

import asyncio
import time

import msgspec
import pytest

from gateway.quotas import failover_store, gateway_share, store_availability
from gateway.quotas.failover_store import FailoverQuotaStore
from gateway.quotas.leases import Leases
from gateway.quotas.limit import Limit, Scope
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import LEASE_SECONDS, Cost, Lease, QuotaStoreUnavailable, Refusal, Reservation
from policies.admission.limit_windows import Window
from radix_cache.redis.call import RedisDown

LIMIT = Limit(unit="requests", amount=3, window=Window(seconds=3600))


class Flaky(LocalQuotaStore):
    """A store that can be away."""

    def __init__(self):
        super().__init__(time.monotonic)
        self.away = False
        self.loses_answers = False
        self.late = False
        self.settled = []

    def check(self):
        if self.away:
            raise QuotaStoreUnavailable("away")

    async def reserve(self, reservation, *, urgent=True):
        self.check()
        decision = await super().reserve(reservation, urgent=urgent)
        if self.loses_answers:
            raise QuotaStoreUnavailable("the connection was lost")
        return decision

    def settle(self, lease, actual):
        ended = asyncio.get_running_loop().create_future()
        if self.away:
            ended.set_exception(QuotaStoreUnavailable("away"))
        else:
            self.settled.append(lease.reservation.id)
            super().settle(lease, actual)
            ended.set_result(None)
        return ended

    def settle_and_reserve(self, ended, ahead):
        if self.away:
            return self.fail()
        return super().settle_and_reserve(ended, ahead)

    async def fail(self):
        raise QuotaStoreUnavailable("away")

    async def renew(self, leases):
        self.check()
        await super().renew(leases)

    async def ping(self):
        if self.away:
            raise RedisDown("away")
        return not self.late


@pytest.fixture
def shared():
    return Flaky()


@pytest.fixture
def store(shared):
    return FailoverQuotaStore(shared, LocalQuotaStore(time.monotonic), shared.ping, time.monotonic)


def ask(number, limits=(LIMIT,)):
    scope = Scope(name="t", limits=limits)
    return Reservation(id=f"r{number}", organisation="o", scopes=(scope,), cost=Cost(prompt_tokens=1))


async def until(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)


async def test_while_redis_answers_it_decides(store, shared):
    assert isinstance(await store.reserve(ask(1)), Lease)
    assert (store.away, store.local_decisions) == (False, 0)


async def test_a_single_failure_is_decided_here_and_nothing_else_changes(store, shared):
    shared.away = True
    assert isinstance(await store.reserve(ask(1)), Lease)
    shared.away = False
    assert (store.away, store.local_decisions) == (False, 1)
    await store.reserve(ask(2))
    assert store.local_decisions == 1


async def test_after_three_failures_redis_is_left_alone_until_it_answers_a_ping(store, shared, monkeypatch):
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0.01)
    shared.away = True
    for number in range(3):
        await store.reserve(ask(number))
    assert store.away
    shared.away = False
    await store.reserve(ask(9))
    assert store.local_decisions == 4
    watching = asyncio.create_task(store.run())
    await until(lambda: not store.away)
    await store.reserve(ask(10))
    assert store.local_decisions == 4
    watching.cancel()


async def goes_away(store, shared):
    shared.away = True
    for number in range(store_availability.FAILURES_MAX):
        await store.reserve(ask(number))
    assert store.away
    shared.away = False


async def test_a_redis_that_answers_late_stays_away_and_gets_what_was_left_over(store, shared, monkeypatch):
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0.01)
    lease = await store.reserve(ask(7))
    await goes_away(store, shared)
    shared.late = True
    await store.settle(lease, Cost(prompt_tokens=1))
    watching = asyncio.create_task(store.run())
    await until(lambda: shared.settled == ["r7"])
    assert store.away
    shared.late = False
    await until(lambda: not store.away)
    watching.cancel()


async def test_each_time_that_it_does_not_last_coming_back_takes_twice_as_long(shared, monkeypatch):
    """Else a Redis that is about as fast as it has to be would come and go twice a second."""
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0)
    now, pings = 0.0, 0

    async def ping():
        nonlocal pings
        pings += 1
        return await shared.ping()

    store = FailoverQuotaStore(shared, LocalQuotaStore(lambda: now), ping, lambda: now)
    watching = asyncio.create_task(store.run())
    await until(lambda: pings == 1)
    taken = []
    for seconds in (0, 1, 1, store_availability.STEADY_SECONDS + 1, 1):
        now += seconds
        await goes_away(store, shared)
        pings = 0
        await until(lambda: not store.away)
        taken.append(pings)
    watching.cancel()
    assert taken == [1, 2, 4, 1, 2]


async def test_an_outage_shows_without_any_request(store, shared, monkeypatch):
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0.01)
    monkeypatch.setattr(failover_store, "IDLE_PING_SECONDS", 0.02)
    watching = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    shared.away = True
    await until(lambda: store.away)
    shared.away = False
    await until(lambda: not store.away)
    watching.cancel()


async def test_limits_hold_while_it_is_away(store, shared):
    shared.away = True
    outcomes = [type(await store.reserve(ask(number))) for number in range(5)]
    assert outcomes == [Lease] * 3 + [Refusal] * 2


async def test_what_could_not_be_settled_is_settled_once_when_it_is_back(store, shared, monkeypatch):
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0.01)
    leases = [await store.reserve(ask(number)) for number in range(3)]
    shared.away = True
    for lease in leases:
        await store.settle(lease, Cost(prompt_tokens=1))
    assert shared.settled == []
    watching = asyncio.create_task(store.run())
    shared.away = False
    await until(lambda: len(shared.settled) == 3)
    await asyncio.sleep(0.05)
    assert sorted(shared.settled) == ["r0", "r1", "r2"]
    watching.cancel()


async def test_what_was_used_on_a_local_grant_is_charged_in_the_shared_store(store, shared):
    shared.away = True
    lease = await store.reserve(ask(1))
    shared.away = False
    await store.settle(lease, Cost(prompt_tokens=1))
    assert shared.settled == ["r1/local"]
    assert (await shared.reserve(ask(2))).limit_statuses[0].remaining == 1


async def test_a_decision_whose_answer_was_lost_is_charged_once(store, shared, monkeypatch):
    """A server may die between writing it down and saying so, and have it on disk when it is back."""
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0.01)
    shared.loses_answers = True
    lease = await store.reserve(ask(1))
    shared.loses_answers = False
    watching = asyncio.create_task(store.run())
    await until(lambda: not any(held.ends for held in shared._leases.values()))
    await store.settle(lease, Cost(prompt_tokens=1))
    assert shared.settled == ["r1/local"]
    assert (await shared.reserve(ask(2))).limit_statuses[0].remaining == 1
    watching.cancel()


async def test_a_local_grant_that_was_not_used_is_charged_nowhere(store, shared):
    shared.away = True
    lease = await store.reserve(ask(1))
    shared.away = False
    await store.release(lease)
    assert shared.settled == []
    assert (await shared.reserve(ask(2))).limit_statuses[0].remaining == 2


async def test_a_tenant_with_nothing_left_has_nothing_left_while_redis_is_away(store, shared):
    for number in range(3):
        await store.reserve(ask(number))
    assert isinstance(await store.reserve(ask(4)), Refusal)
    shared.away = True
    assert isinstance(await store.reserve(ask(5)), Refusal)
    assert store.local_decisions == 1


async def test_a_redis_that_is_away_at_the_start_is_known_at_once(store, shared, caplog):
    shared.away = True
    watching = asyncio.create_task(store.run())
    await until(lambda: store.away)
    assert "Redis is away" in caplog.text
    watching.cancel()


async def test_what_was_decided_here_is_forgotten_once_it_is_over():
    now = 0.0
    local = LocalQuotaStore(lambda: now)
    local.settle(await local.reserve(ask(1)), Cost(prompt_tokens=1))
    now = 2 * LIMIT.window.seconds
    await local.renew([])
    assert (local._leases, local._accounts) == ({}, {})


async def test_leases_are_renewed_where_they_were_given(store, shared):
    shared.away = True
    local = await store.reserve(ask(1))
    shared.away = False
    remote = await store.reserve(ask(2))
    await store.renew([local, remote])
    shared.away = True
    await store.renew([local, remote])


async def test_unsettled_leases_are_bounded(store, shared, monkeypatch):
    lease = await store.reserve(ask(1, limits=()))
    shared.away = True
    for _ in range(failover_store.UNSETTLED_MAX + 10):
        await store.settle(lease, Cost(prompt_tokens=1))
    assert len(store._unsettled) == failover_store.UNSETTLED_MAX


async def test_a_tenant_without_limits_costs_no_trip(shared):
    shared.away = True
    leases = Leases(shared)
    lease = await leases.reserve(ask(1, limits=()))
    assert isinstance(lease, Lease)
    leases.end(lease, None)
    await leases.close()
    assert len(leases) == 0


async def test_leases_end_in_the_background(shared):
    leases = Leases(shared)
    lease = await leases.reserve(ask(1))
    assert len(leases) == 1
    leases.end(lease, Cost(prompt_tokens=1))
    leases.end(lease, Cost(prompt_tokens=1))
    assert len(leases) == 0
    await leases.close()
    assert shared.settled == ["r1"]


async def test_while_redis_is_away_each_gateway_grants_its_part_of_every_limit(shared):
    store = FailoverQuotaStore(
        shared, LocalQuotaStore(time.monotonic), shared.ping, time.monotonic, gateways=lambda: 2
    )
    tokens = Limit(unit="total_tokens", amount=100, window=Window(seconds=3600))
    await store.reserve(ask(0, (tokens,)))
    shared.away = True
    granted = await store.reserve(reserving(1, tokens, 48))
    assert isinstance(granted, Lease)
    assert granted.reservation.scopes[0].limits == (tokens,)
    assert granted.limit_statuses[0].remaining == 1
    refusal = await store.reserve(reserving(2, tokens, 2))
    assert (refusal.amount, refusal.retry_after_seconds) == (50, pytest.approx(72, abs=5))


async def test_what_fits_the_whole_limit_and_not_a_part_of_it_may_come_again(shared):
    store = FailoverQuotaStore(
        shared, LocalQuotaStore(time.monotonic), shared.ping, time.monotonic, gateways=lambda: 2
    )
    shared.away = True
    tokens = Limit(unit="total_tokens", amount=100, window=Window(seconds=3600))
    assert (await store.reserve(reserving(1, tokens, 80))).retry_after_seconds == gateway_share.AGAIN_SECONDS
    assert (await store.reserve(reserving(2, tokens, 101))).retry_after_seconds is None


async def test_what_is_used_on_a_part_is_charged_to_the_whole(shared):
    store = FailoverQuotaStore(
        shared, LocalQuotaStore(time.monotonic), shared.ping, time.monotonic, gateways=lambda: 4
    )
    tokens = Limit(unit="total_tokens", amount=100, window=Window(seconds=3600))
    shared.away = True
    lease = await store.reserve(reserving(1, tokens, 20))
    shared.away = False
    await store.settle(lease, Cost(prompt_tokens=13))
    assert (await shared.reserve(reserving(2, tokens, 0))).limit_statuses[0].remaining == 87


async def test_with_failing_closed_requests_are_refused_until_redis_is_back(store, shared):
    closed = msgspec.structs.replace(ask(1), closed=True)
    assert isinstance(await store.reserve(closed), Lease)
    shared.away = True
    for number in range(2, 6):
        with pytest.raises(QuotaStoreUnavailable):
            await store.reserve(msgspec.structs.replace(ask(number), closed=True))
    assert store.local_decisions == 0
    assert isinstance(await store.reserve(ask(9)), Lease)


def reserving(number, limit, tokens):
    return msgspec.structs.replace(ask(number, (limit,)), cost=Cost(prompt_tokens=tokens))


async def test_a_part_of_a_limit_has_the_same_share_left_after_the_number_of_gateways_changed(shared):
    gateways = 1
    store = FailoverQuotaStore(
        shared, LocalQuotaStore(time.monotonic), shared.ping, time.monotonic, gateways=lambda: gateways
    )
    tokens = Limit(unit="total_tokens", amount=120, window=Window(seconds=36000, reset="rolling"))
    await store.reserve(reserving(1, tokens, 60))
    shared.away = True
    assert (await store.reserve(reserving(2, tokens, 0))).limit_statuses[0].remaining == 60
    gateways = 2
    assert (await store.reserve(reserving(3, tokens, 10))).limit_statuses[0].remaining == 20
    gateways = 3
    assert (await store.reserve(reserving(4, tokens, 0))).limit_statuses[0].remaining == 13
    gateways = 1
    assert (await store.reserve(reserving(5, tokens, 0))).limit_statuses[0].remaining == 40


async def test_what_was_seen_of_a_limit_is_kept_to_that_limit(store, shared):
    wide, small = (Limit(unit="requests", amount=n, window=Window(seconds=3600 * n)) for n in (9, 2))
    for number in range(2):
        await store.reserve(ask(number, (wide, small)))
    shared.away = True
    changed = await store.reserve(ask(3, (LIMIT, wide)))
    assert [status.remaining for status in changed.limit_statuses] == [2, 6]


async def test_what_was_granted_here_is_forgotten_after_redis_is_back(shared, monkeypatch):
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0.01)
    now = 0.0
    local = LocalQuotaStore(lambda: now)
    store = FailoverQuotaStore(shared, local, shared.ping, lambda: now)
    await goes_away(store, shared)
    watching = asyncio.create_task(store.run())
    await until(lambda: not store.away)
    assert local._leases
    assert local._accounts
    now += LIMIT.window.seconds + LEASE_SECONDS
    await until(lambda: not local._leases and not local._accounts)
    watching.cancel()


async def test_leases_whose_common_settlement_fails_are_settled_once_redis_answers(
    store, shared, monkeypatch
):
    monkeypatch.setattr(failover_store, "PING_SECONDS", 0.01)
    leases = [await store.reserve(ask(number)) for number in range(2)]
    shared.away = True
    ended = [(lease, Cost(prompt_tokens=1)) for lease in leases]
    granted = await store.settle_and_reserve(ended, [ask("ahead")])
    assert granted.count == 0
    shared.away = False
    watching = asyncio.create_task(store.run())
    await until(lambda: len(shared.settled) == 2)
    watching.cancel()
    assert sorted(shared.settled) == ["r0", "r1"]
    with pytest.raises(QuotaStoreUnavailable, match="ended"):
        await shared.reserve(ask("ahead"))


async def test_nothing_is_reserved_ahead_while_redis_is_away(store, shared):
    lease = await store.reserve(ask(1))
    shared.away = store.availability.away = True
    granted = await store.settle_and_reserve([(lease, Cost(prompt_tokens=1))], [ask("ahead")])
    assert granted.count == 0
    assert store.local_decisions == 0


async def test_what_is_left_over_when_the_gateway_stops_is_sent_once_more(store, shared):
    """Redis was away for a moment, and is back before any ping."""
    used = await store.reserve(ask("used"))
    shared.loses_answers = True
    await store.reserve(ask("unheard"))
    shared.away = True
    await store.settle(used, Cost(prompt_tokens=1))
    shared.away = shared.loses_answers = False
    await store.close()
    assert shared.settled == ["rused"]
    assert (await shared.reserve(ask("next"))).limit_statuses[0].remaining == 1


async def test_a_gateway_stops_while_redis_stays_away(store, shared, monkeypatch):
    lease = await store.reserve(ask(1))
    shared.away = True
    await store.settle(lease, Cost(prompt_tokens=1))
    await store.close()
    monkeypatch.setattr(failover_store, "CLOSE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(shared, "settle", lambda *_: asyncio.get_running_loop().create_future())
    await store.close()
    assert shared.settled == []
