"""Quota in escrow: when a request finds a lease, when there is none, and that all leases come back."""

import asyncio
import itertools
from dataclasses import replace

import msgspec
import pytest

from gateway.quotas import escrow, escrow_accounts
from gateway.quotas.escrow import Escrow
from gateway.quotas.escrow_account import BUSY_SECONDS
from gateway.quotas.escrow_policy import AHEAD_MAX, CONCURRENT_EACH, rounded_up
from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import (
    Cost,
    IdempotencyKey,
    Lease,
    QuotaStoreUnavailable,
    Refusal,
    Reservation,
)
from policies.admission.limit_windows import Window

REQUESTS = Limit(unit="requests", amount=10_000, window=Window(seconds=60))
TOKENS = Limit(unit="total_tokens", amount=10_000_000, window=Window(seconds=60, reset="rolling"))
PLACES = AHEAD_MAX * CONCURRENT_EACH
PLAN = Scope(name="tenant:t", limits=(REQUESTS, TOKENS, concurrency(PLACES)))


numbers = itertools.count()


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Slow(LocalQuotaStore):
    """A store whose decisions come when they may."""

    def __init__(self, clock):
        super().__init__(clock)
        self.may = asyncio.Event()
        self.may.set()
        self.asked = []
        self.away = False

    async def reserve(self, reservation, *, urgent=True):
        self.asked.append(reservation.id)
        await self.may.wait()
        if self.away:
            raise QuotaStoreUnavailable("away")
        return await super().reserve(reservation, urgent=urgent)

    def settle_and_reserve(self, ended, ahead):
        self.asked += [reservation.id for reservation in ahead]
        for lease, actual in ended:
            self.settle(lease, actual)

        async def decided():
            await self.may.wait()
            if self.away:
                raise QuotaStoreUnavailable("away")
            return await LocalQuotaStore.settle_and_reserve(self, (), ahead)

        return decided()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return Slow(clock)


@pytest.fixture
def ahead(store, clock):
    return Escrow(store, store, clock)


def asked(id, scope=PLAN, prompt=100, output=50, **more):
    return Reservation(
        id=id,
        organisation="o",
        scopes=(scope,),
        cost=Cost(prompt_tokens=prompt, output_tokens=output, cached_tokens=None),
        tenant="t",
        model="m",
        **more,
    )


async def busy(ahead, clock, scope=PLAN, gap=0.1, times=2, **cost):
    """An account that asks again and again."""
    for _ in range(times):
        clock.now += gap
        lease = await ahead.reserve(asked(f"before-{next(numbers)}", scope, **cost))
        ahead.settle(lease, Cost(prompt_tokens=100, output_tokens=50))
        ahead.flush()
        await asyncio.sleep(0)


async def running(store):
    """Requests that hold a place now, as the store has it."""
    probe = await LocalQuotaStore.reserve(store, asked(f"probe-{next(numbers)}"))
    store.release(probe)
    return PLACES - probe.limit_statuses[2].remaining - 1


async def test_a_request_of_a_busy_account_uses_a_lease_without_a_call_to_redis(ahead, store, clock):
    await busy(ahead, clock)
    store.may.clear()
    lease = await asyncio.wait_for(ahead.reserve(asked("next")), 60)
    assert isinstance(lease, Lease)
    assert "next" not in store.asked
    assert ahead.taken == 1


async def test_what_was_used_is_what_is_charged_whichever_request_reserved_it(ahead, store, clock):
    window = replace(REQUESTS, window=Window(seconds=1e9))
    scope = Scope(name="tenant:t", limits=(window, replace(TOKENS, window=Window(seconds=1e9))))
    await busy(ahead, clock, scope, times=20, prompt=10, output=10)
    assert ahead.taken > 10
    await ahead.close()
    left = (await store.reserve(asked("probe", scope, prompt=0, output=0))).limit_statuses
    assert [status.remaining for status in left] == [10_000 - 21, 10_000_000 - 20 * 150]


async def test_one_request_alone_leaves_nothing_behind(ahead, store, clock):
    await busy(ahead, clock, times=1)
    assert len(store.asked) == 1
    clock.now += BUSY_SECONDS + 0.1
    await busy(ahead, clock, times=1)
    assert await running(store) == 0


async def test_leases_are_ahead_of_the_requests_of_two_decisions_and_no_more_than_128(ahead, store, clock):
    await busy(ahead, clock, gap=0.1, times=5)
    assert await running(store) == 1
    await busy(ahead, clock, gap=0.005, times=5)
    assert await running(store) == 2 * 6 - 1
    await busy(ahead, clock, gap=0.0001, times=2 * AHEAD_MAX)
    assert await running(store) == AHEAD_MAX


async def test_slow_decisions_put_more_leases_ahead(ahead, store, clock):
    await busy(ahead, clock, gap=0.02, times=5)
    assert await running(store) == 3
    store.may.clear()
    before = await ahead.reserve(asked("before"))
    ahead.settle(before, Cost(prompt_tokens=100, output_tokens=50))
    ahead.flush()
    await asyncio.sleep(0)
    clock.now += 0.2  # The decision on the lease ahead takes so long.
    store.may.set()
    await asyncio.sleep(0.01)
    await busy(ahead, clock, gap=0.02, times=8)
    assert await running(store) > 5
    await busy(ahead, clock, gap=0.02, times=40)
    assert await running(store) == 3


async def test_quota_that_no_request_used_is_given_back(ahead, store, clock, monkeypatch):
    monkeypatch.setattr(escrow, "SWEEP_SECONDS", 0.001)
    await busy(ahead, clock)
    assert await running(store) == 1
    sweeping = asyncio.create_task(ahead.run())
    await asyncio.sleep(0.02)
    assert await running(store) == 1, "it has its second"
    clock.now += escrow.IDLE_SECONDS + 0.1
    while await running(store):
        await asyncio.sleep(0.001)
    while ahead._accounts:
        await asyncio.sleep(0.001)
    assert not ahead._accounts._keys_of
    sweeping.cancel()


async def test_a_request_takes_what_is_as_long_as_it_may_be(ahead, store, clock):
    await busy(ahead, clock)
    assert isinstance(await ahead.reserve(asked("as long", prompt=128)), Lease)
    assert "as long" not in store.asked


async def test_a_request_beyond_the_escrow_reserves_for_itself_and_the_next_does_not(ahead, store, clock):
    await busy(ahead, clock)
    lease = await ahead.reserve(asked("long", prompt=129))
    assert "long" in store.asked
    clock.now += 0.1
    ahead.settle(lease, Cost(prompt_tokens=129))
    ahead.flush()
    await asyncio.sleep(0)
    assert isinstance(await ahead.reserve(asked("as long", prompt=140)), Lease)
    assert "as long" not in store.asked


async def test_of_several_that_are_ahead_the_one_that_is_large_enough_is_taken(ahead, store, clock):
    await busy(ahead, clock, gap=0.004, times=2)
    lease = await ahead.reserve(asked("long", prompt=500))
    clock.now += 0.0001
    ahead.settle(lease, Cost(prompt_tokens=500))
    ahead.flush()
    await asyncio.sleep(0)
    assert isinstance(await ahead.reserve(asked("as long", prompt=500)), Lease)
    assert "as long" not in store.asked
    assert isinstance(await ahead.reserve(asked("short")), Lease)
    assert "short" not in store.asked


@pytest.mark.parametrize(
    "limit",
    [
        replace(REQUESTS, amount=200),
        replace(TOKENS, amount=64 * 256),
        replace(TOKENS, amount=192 * 4000, window=Window(seconds=86_400)),
        concurrency(8),
        replace(REQUESTS, amount=1, mode="soft"),
        replace(REQUESTS, amount=1, mode="shadow"),
    ],
    ids=["requests", "tokens", "a long window", "concurrency", "a soft one", "a shadow"],
)
async def test_near_a_limit_nothing_is_held_that_others_could_use(ahead, store, clock, limit):
    scope = Scope(name="tenant:t", limits=(replace(REQUESTS, amount=10**6), limit))
    await busy(ahead, clock, scope, times=4)
    assert [name for name in store.asked if name.startswith("ahead-")] == []


async def test_a_lease_whose_window_has_ended_is_not_used_in_the_next(ahead, store, clock):
    rolling = replace(REQUESTS, window=Window(seconds=0.5, reset="rolling"))
    scope = Scope(name="tenant:t", limits=(rolling,))
    await busy(ahead, clock, scope)
    clock.now += 0.45
    lease = await ahead.reserve(asked("in the next window", scope))
    assert "in the next window" in store.asked
    assert lease.limit_statuses[0].remaining == 10_000 - 1


async def test_limits_that_were_changed_hold_for_the_next_request(ahead, store, clock):
    await busy(ahead, clock)
    lower = replace(PLAN, limits=(replace(REQUESTS, amount=1),))
    assert isinstance(await ahead.reserve(asked("next", lower)), Refusal)
    await asyncio.sleep(0)
    assert await running(store) == 0


async def test_a_request_from_before_a_change_reserves_nothing_by_the_old_limits(ahead, store, clock):
    await busy(ahead, clock)
    old = await ahead.reserve(asked("before the change"))
    higher = replace(PLAN, limits=(replace(REQUESTS, amount=20_000),))
    await busy(ahead, clock, higher)
    ahead.settle(old, Cost(prompt_tokens=1))
    ahead.flush()
    assert isinstance(await ahead.reserve(asked("next", higher)), Lease)
    assert "next" not in store.asked


async def test_after_a_long_request_what_is_ahead_is_as_short_as_requests_are_again(ahead, store, clock):
    await busy(ahead, clock, prompt=1000)
    for _ in range(4):
        lease = await ahead.reserve(asked("short"))
        clock.now += 0.1
        ahead.settle(lease, Cost(prompt_tokens=100))
        ahead.flush()
        await asyncio.sleep(0)
    assert lease.reservation.cost.prompt_tokens == 128
    assert "short" not in store.asked


async def test_nothing_is_reserved_ahead_for_a_tenant_with_only_ending_requests(ahead, store, clock):
    await busy(ahead, clock, times=1)
    leases = [await ahead.reserve(asked(f"streams-{at}")) for at in range(3)]
    clock.now += BUSY_SECONDS + 0.1
    for lease in leases:
        ahead.settle(lease, Cost(prompt_tokens=100))
        ahead.flush()
    await asyncio.sleep(0)
    assert await running(store) == 0


@pytest.mark.parametrize(("amount", "held"), [(63, 0), (64, 1), (191, 2), (10_000, AHEAD_MAX)])
async def test_of_few_places_few_are_held_that_requests_elsewhere_are_refused_for(
    ahead, store, clock, amount, held
):
    scope = Scope(name="tenant:t", limits=(concurrency(10**6), concurrency(amount, ("m",))))
    await busy(ahead, clock, scope, gap=0.0001, times=2 * AHEAD_MAX)
    assert sum(len(account.ahead) for account in ahead._accounts) == held


@pytest.mark.parametrize("repeatable", [False, True])
async def test_no_request_is_refused_for_what_other_gateways_have_in_escrow(ahead, store, clock, repeatable):
    scope = Scope(name="tenant:t", limits=(concurrency(64),))
    await busy(ahead, clock, scope)
    for at in range(63):
        assert isinstance(await LocalQuotaStore.reserve(store, asked(f"elsewhere-{at}", scope)), Lease)
    once = IdempotencyKey(name="n", fingerprint="f") if repeatable else None
    last = msgspec.structs.replace(asked("the last", scope, idempotency_key=once), model="another")
    assert isinstance(await ahead.reserve(last), Lease)
    too_many = msgspec.structs.replace(asked("too many", scope), model="another")
    assert isinstance(await ahead.reserve(too_many), Refusal)
    assert store.asked.count("too many") == 1


async def test_an_account_near_a_limit_gives_back_what_is_ahead(ahead, store, clock):
    await busy(ahead, clock, gap=0.0001, times=2 * AHEAD_MAX)
    assert await running(store) == AHEAD_MAX
    await LocalQuotaStore.reserve(store, asked("another gateway's", prompt=9_900_000))
    lease = await ahead.reserve(asked("the next"))
    ahead.settle(lease, Cost(prompt_tokens=100))
    ahead.flush()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await running(store) == len(["another gateway's"])


async def test_escrow_that_is_too_small_is_given_back_before_its_request_reserves(ahead, store, clock):
    few = Scope(name="tenant:t", limits=(concurrency(PLACES),))
    await busy(ahead, clock, few, gap=0.001, times=4)
    longer = [ahead.reserve(asked(f"longer-{at}", few, prompt=1000)) for at in range(PLACES)]
    assert {type(decision) for decision in await asyncio.gather(*longer)} == {Lease}


async def test_a_short_window_that_refills_is_charged_hardly_before_its_use(ahead, store, clock):
    scope = Scope(name="tenant:t", limits=(replace(REQUESTS, window=Window(seconds=1)),))
    await busy(ahead, clock, scope, gap=0.01)
    clock.now += 0.01
    assert isinstance(await ahead.reserve(asked("soon", scope)), Lease)
    assert "soon" not in store.asked
    await busy(ahead, clock, scope, gap=0.01)
    clock.now += 0.02
    assert isinstance(await ahead.reserve(asked("late", scope)), Lease)
    assert "late" in store.asked


async def test_an_end_without_an_answer_of_the_store_is_bounded(store, clock, monkeypatch):
    monkeypatch.setattr(escrow, "CLOSE_SECONDS_MAX", 0.01)
    never = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(store, "release", lambda lease: never)
    ahead = Escrow(store, clock=clock)
    await busy(ahead, clock)
    await asyncio.wait_for(ahead.close(), 60)
    never.cancel()


async def test_a_lease_that_is_not_there_yet_is_waited_for_and_given_back_if_its_request_leaves(
    ahead, store, clock
):
    await busy(ahead, clock, times=1)
    lease = await ahead.reserve(asked("second"))
    store.may.clear()
    ahead.settle(lease, Cost(prompt_tokens=100))
    ahead.flush()
    await asyncio.sleep(0)
    waiting = asyncio.create_task(ahead.reserve(asked("third")))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert "third" not in store.asked
    waiting.cancel()
    store.may.set()
    await asyncio.wait([waiting])
    await ahead.close()
    assert await running(store) == 0


async def test_escrow_that_was_refused_is_reserved_again_by_its_request(ahead, store, clock):
    await busy(ahead, clock, times=1)
    lease = await ahead.reserve(asked("second"))
    store.may.clear()
    ahead.settle(lease, Cost(prompt_tokens=100))
    ahead.flush()
    waiting = asyncio.create_task(ahead.reserve(asked("third")))
    await asyncio.sleep(0)
    await LocalQuotaStore.reserve(store, asked("another gateway's", prompt=9_999_540))
    store.may.set()
    assert isinstance(await waiting, Lease)
    assert "third" in store.asked


async def test_while_redis_is_away_every_request_is_decided_by_itself(ahead, store, clock):
    await busy(ahead, clock)
    store.away = True
    with pytest.raises(QuotaStoreUnavailable):
        await ahead.reserve(asked("next"))
    store.away = False
    await busy(ahead, clock, times=3)
    assert ahead.taken > 0


async def test_a_request_that_may_be_repeated_is_known_by_its_own_name(ahead, store, clock):
    await busy(ahead, clock)
    once = IdempotencyKey(name="n", fingerprint="f")
    lease = await ahead.reserve(asked("repeatable", idempotency_key=once))
    assert lease.reservation.id == "repeatable"
    before = len(store.asked)
    ahead.settle(lease, Cost(prompt_tokens=1))
    ahead.flush()
    await asyncio.sleep(0)
    assert len(store.asked) == before


async def test_at_the_end_everything_is_given_back_and_nothing_more_is_taken(ahead, store, clock):
    await busy(ahead, clock, gap=0.0001, times=2 * AHEAD_MAX)
    lease = await ahead.reserve(asked("the last"))
    await ahead.close()
    ahead.settle(lease, Cost(prompt_tokens=1))
    ahead.flush()
    await asyncio.sleep(0)
    assert await running(store) == 0


async def test_what_the_store_decides_while_the_escrow_closes_is_given_back(ahead, store, clock):
    await busy(ahead, clock)
    lease = await ahead.reserve(asked("the last"))
    store.may.clear()
    ahead.settle(lease, Cost(prompt_tokens=1))
    ahead.flush()
    assert len(ahead._accounts.known(lease.reservation).ahead) > 0
    asyncio.get_running_loop().call_later(0.05, store.may.set)
    await ahead.close()
    assert await running(store) == 0


async def test_accounts_are_bounded_and_one_that_is_dropped_gives_back(ahead, store, clock, monkeypatch):
    monkeypatch.setattr(escrow_accounts, "ACCOUNTS_MAX", 3)
    for name in "abcdef":
        await busy(ahead, clock, Scope(name=f"tenant:{name}", limits=PLAN.limits))
    await asyncio.sleep(0)
    assert len(ahead._accounts) == 3
    assert len(ahead._accounts.of_organisation("o")) == 3
    assert sum(len(account.ahead) for account in ahead._accounts) == 3


async def test_leases_that_end_together_are_settled_by_one_call(ahead, store, clock, monkeypatch):
    calls = []
    together = store.settle_and_reserve

    def settle_and_reserve(ended, ahead):
        calls.append((len(ended), len(ahead)))
        return together(ended, ahead)

    monkeypatch.setattr(store, "settle_and_reserve", settle_and_reserve)
    leases = [await ahead.reserve(asked(f"together-{at}")) for at in range(5)]
    settled = [ahead.settle(lease, Cost(prompt_tokens=100, output_tokens=50)) for lease in leases]
    await asyncio.gather(*settled)
    assert calls == [(5, 9)]
    assert await running(store) == 9


async def test_no_more_leases_are_settled_by_one_call_than_its_bound(ahead, store, clock, monkeypatch):
    monkeypatch.setattr(escrow, "TOGETHER_MAX", 2)
    monkeypatch.setattr(escrow, "TOGETHER_SECONDS_FAR", 3600)
    leases = [await ahead.reserve(asked(f"together-{at}")) for at in range(3)]
    settled = [ahead.settle(lease, Cost(prompt_tokens=100)) for lease in leases]
    await asyncio.gather(*settled[:2])
    assert not settled[2].done()
    await ahead.close()
    assert settled[2].done()


async def test_the_end_of_the_last_request_is_sent_at_once_where_the_next_one_would_find_no_lease(
    ahead, store, clock, monkeypatch
):
    monkeypatch.setattr(escrow, "TOGETHER_SECONDS_FAR", 3600)
    settled = ahead.settle(await ahead.reserve(asked("alone")), Cost(prompt_tokens=100))
    ahead.flush_if_short()
    await asyncio.wait_for(settled, 60)


async def test_the_end_of_the_last_request_waits_for_others_while_leases_are_ahead(
    ahead, store, clock, monkeypatch
):
    monkeypatch.setattr(escrow, "TOGETHER_SECONDS_FAR", 3600)
    await busy(ahead, clock, gap=0.005, times=5)
    settled = ahead.settle(await ahead.reserve(asked("one of many")), Cost(prompt_tokens=100))
    ahead.flush_if_short()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not settled.done()
    ahead.flush()
    await asyncio.wait_for(settled, 60)


async def test_what_ends_near_a_limit_is_settled_without_waiting_for_what_ends_far_from_limits(
    ahead, store, clock, monkeypatch
):
    monkeypatch.setattr(escrow, "TOGETHER_SECONDS_FAR", 3600)
    scope = Scope(name="tenant:near", limits=(concurrency(2),))
    far, near = await ahead.reserve(asked("far")), await ahead.reserve(asked("near", scope))
    waits = ahead.settle(far, Cost(prompt_tokens=100))
    await asyncio.sleep(0.02)
    assert not waits.done()
    await ahead.settle(near, Cost(prompt_tokens=100))
    assert waits.done()


async def test_what_has_ended_is_settled_before_the_next_request_is_decided(ahead, clock):
    scope = Scope(name="tenant:t", limits=(concurrency(1),))
    for at in range(3):
        lease = await ahead.reserve(asked(f"alone-{at}", scope))
        assert isinstance(lease, Lease)
        ahead.settle(lease, Cost(prompt_tokens=100))


async def test_a_lease_that_ends_after_its_account_was_dropped_has_none_ahead_of_it(
    ahead, store, clock, monkeypatch
):
    monkeypatch.setattr(escrow_accounts, "ACCOUNTS_MAX", 1)
    await busy(ahead, clock)
    lease = await ahead.reserve(asked("the last"))
    ahead.settle(lease, Cost(prompt_tokens=100))
    other = Scope(name="tenant:other", limits=PLAN.limits)
    ahead.release(await ahead.reserve(asked("another account's", other)))
    await asyncio.sleep(0)
    assert await running(store) == 0


def test_costs_are_rounded_up_so_that_the_next_request_may_be_longer():
    cost = rounded_up(Cost(prompt_tokens=100, output_tokens=64, cached_tokens=None, spend=0))
    assert cost == Cost(prompt_tokens=128, output_tokens=64, cached_tokens=None, spend=0)
    assert rounded_up(cost) == cost
    one = rounded_up(msgspec.structs.replace(cost, prompt_tokens=1, output_tokens=0, spend=3))
    assert (one.prompt_tokens, one.output_tokens, one.spend) == (1, 0, 4)
