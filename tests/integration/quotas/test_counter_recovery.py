"""Quotas after Redis has lost all counters: long windows are restored from the usage ledger."""

import asyncio
import itertools
import random
import time
from pathlib import Path

import pytest
import redis

from gateway.database import schema
from gateway.database.account_hours import AccountHours
from gateway.database.database import Database
from gateway.database.tenant_store import TenantStore
from gateway.database.usage_store import UsageStore
from gateway.ledger.account_usage import LedgerAccountUsage
from gateway.ledger.entry import UsageEntry
from gateway.ledger.journal import Journal
from gateway.ledger.shipper import Shipper
from gateway.quotas import counter_recovery
from gateway.quotas.counter_recovery import CounterRecovery, SpentUnknown
from gateway.quotas.failover_store import FailoverQuotaStore
from gateway.quotas.limit import Limit, Scope
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import Cost, Lease, QuotaStoreUnavailable, Refusal, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from gateway.settings.tenants import TenantSettings
from gateway.tenants.key_lifecycle import KeyLifecycle
from policies.admission.limit_windows import Window, WindowUsage
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.clock import FakeClock
from tests.fakes.scripted_worker import ScriptedWorker

numbers = itertools.count()

MONTH = Limit(unit="total_tokens", amount=1000, window=Window.of("month", "calendar"))
SPEND = Limit(unit="spend", amount=10_000, window=Window.of("week", "rolling"))
DAY = Limit(unit="total_tokens", amount=1000, window=Window.of("day"))
MINUTE = Limit(unit="total_tokens", amount=1000, window=Window.of("minute"))


class House:
    """A ledger, and gateways that count in one Redis, which can lose it all. `organisation`: of this test alone."""

    def __init__(self, url, valkey, directory):
        self.organisation = f"org{next(numbers)}-{time.time_ns()}"
        self.database = Database(url, Path())
        self.journal = Journal(directory, bytes_max=10**7)
        self.shipper = Shipper(self.journal, UsageStore(self.database))
        self.scripts = ScriptCaller(valkey.url)
        self.spent = LedgerAccountUsage(self.shipper, AccountHours(self.database))
        self.valkey = valkey
        self.clock = FakeClock()

    def store(self, ledger=None):
        """Another gateway's."""
        return RedisQuotaStore(
            self.scripts, 5.0, recovery=CounterRecovery(ledger or self.spent, clock=self.clock)
        )

    def asked(self, *limits, tokens=100, scope="tenant:t"):
        return Reservation(
            id=f"r{next(numbers)}",
            organisation=self.organisation,
            scopes=(Scope(name=scope, limits=limits),),
            cost=Cost(prompt_tokens=tokens, spend=10 * tokens),
            model="m",
        )

    async def uses(self, store, *limits, tokens=100, scope="tenant:t", key_id="k"):
        """One request, from its reservation to its row."""
        lease = await store.reserve(self.asked(*limits, tokens=tokens, scope=scope))
        assert isinstance(lease, Lease)
        await store.settle(lease, Cost(prompt_tokens=tokens, spend=10 * tokens))
        self.note(tokens, key_id=key_id)

    def note(self, tokens, key_id="k", ago=0.0, status=200, worker="w", journal=None):
        """A row of the ledger."""
        entry = UsageEntry(
            request_id=f"q{next(numbers)}",
            attempt=1,
            at_ms=round((time.time() - ago) * 1000),
            organisation=self.organisation,
            tenant="t",
            key_id=key_id,
            asked="m",
            model="m",
            worker=worker,
            surface="chat/completions",
            prompt_tokens=tokens,
            cached_tokens=0,
            output_tokens=0,
            cost=10 * tokens,
            ttft_ms=1,
            duration_ms=1,
            status=status,
            code="ok" if status == 200 else "rate_limit_exceeded",
        )
        (journal or self.journal).append(entry)

    def lose(self, keys="*"):
        with redis.from_url(self.valkey.url) as client:
            for key in client.scan_iter(f"rg:{{{self.organisation}}}:{keys}"):
                client.delete(key)

    async def left(self, store, *limits, scope="tenant:t"):
        nothing = self.asked(*limits, tokens=0, scope=scope)
        lease = await store.reserve(nothing)
        await store.release(lease)
        return [status.remaining for status in lease.limit_statuses]

    async def close(self):
        await self.scripts.close()
        self.journal.close()
        await self.database.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Requests wait for the ledger on a busy machine too."""
    monkeypatch.setattr(counter_recovery, "WAIT_SECONDS_MAX", 60.0)


@pytest.fixture
async def house(tables_url, valkey, tmp_path):
    made = House(tables_url, valkey, tmp_path / "journal")
    yield made
    await made.close()


async def test_long_windows_continue_after_a_loss_and_short_ones_begin_again(house):
    store, limits = house.store(), (MONTH, SPEND, DAY, MINUTE)
    await house.uses(store, *limits, tokens=300)
    house.lose()
    left = await house.left(store, *limits)
    assert left == [700, 7000, pytest.approx(700, abs=2), 1000]


@pytest.mark.parametrize(("keys", "told"), [("*", 1), ("whole", 0)], ids=["all", "only whether it is whole"])
async def test_a_loss_is_logged_and_nothing_else(house, caplog, keys, told):
    """Older versions did not note whether Redis knows all."""
    store = house.store()
    await house.uses(store, MONTH, SPEND, tokens=300)
    await house.shipper.ship()
    house.lose(keys)
    assert await house.left(house.store(), MONTH, SPEND) == [700, 7000]
    lines = [record for record in caplog.records if "counted less of tenant:t than" in record.message]
    assert len(lines) == told


async def test_a_first_long_window_counts_earlier_usage_and_its_log_line_does_not_only_blame_redis(
    house, caplog
):
    store = house.store()
    await house.uses(store, MINUTE, tokens=300)
    assert await house.left(store, MINUTE, MONTH) == [pytest.approx(700, abs=50), 700]
    (line,) = [record.message for record in caplog.records if "counted less of tenant:t" in record.message]
    assert line.endswith("Redis has lost data, or the account had no window longer than an hour before")


async def test_nothing_is_put_back_twice_however_many_gateways_find_the_loss(house):
    first = house.store()
    await house.uses(first, MONTH, tokens=300)
    house.lose()
    stores = [first, house.store(), house.store()]
    requests = [house.uses(store, MONTH, tokens=10) for store in stores * 5]
    await asyncio.gather(*requests)
    assert await house.left(first, MONTH) == [1000 - 300 - 150]
    assert await house.left(house.store(), MONTH) == [550]


async def test_an_exhausted_budget_stays_exhausted(house):
    store = house.store()
    await house.uses(store, MONTH, tokens=1000)
    house.lose()
    assert isinstance(await store.reserve(house.asked(MONTH, tokens=1)), Refusal)


async def test_what_was_under_way_at_the_loss_is_never_charged_twice(house):
    store = house.store()
    await house.uses(store, MONTH, tokens=300)
    lease = await store.reserve(house.asked(MONTH, tokens=100))
    house.lose()
    house.note(100)
    assert await house.left(store, MONTH) == [600]
    await store.settle(lease, Cost(prompt_tokens=100))
    assert await house.left(store, MONTH) == [600]


async def test_a_key_has_what_those_before_it_have_used(house):
    tenants = TenantStore(house.database)
    store, life = house.store(), KeyLifecycle(tenants, b"pepper")
    async with tenants.change() as change:
        await change.put_tenant(TenantSettings(id="t"))
    old = await life.create("t")
    new = await life.rotate(old.id)
    house.note(200, key_id=old.id)
    house.note(50, key_id=new.id)
    house.note(7, key_id="another")
    assert await house.left(store, MONTH, scope=f"key:{old.id}") == [750]


async def test_a_key_of_the_settings_file_has_what_was_used_under_its_family(house):
    ledger = LedgerAccountUsage(house.shipper, AccountHours(house.database), {"first": ["second"]})
    house.note(200, key_id="first")
    house.note(50, key_id="second")
    house.note(7, key_id="another")
    assert await house.left(house.store(ledger), MONTH, scope="key:first") == [750]


async def test_of_requests_failed_ones_do_not_count(house):
    requests = Limit(unit="requests", amount=10, window=Window.of("day", "calendar"))
    house.note(5)
    house.note(0, status=429)
    # One, and the one that asks.
    assert await house.left(house.store(), requests) == [8]


async def test_an_organisation_has_what_all_its_tenants_have_used(house):
    house.note(40)
    house.note(60, key_id="other")
    assert await house.left(house.store(), MONTH, scope=f"organisation:{house.organisation}") == [900]


async def test_what_was_used_before_the_window_does_not_count(house):
    house.note(500, ago=40 * 86_400)
    house.note(20)
    assert await house.left(house.store(), MONTH) == [980]


class Away:
    """A ledger that cannot be read at first."""

    def __init__(self, inner):
        self.inner, self.away = inner, True

    async def hours(self, scope, since):
        if self.away:
            raise SpentUnknown("away")
        return await self.inner.hours(scope, since)


async def test_without_the_database_requests_go_on_and_the_ledger_counts_later(house):
    ledger = Away(house.spent)
    store = RedisQuotaStore(house.scripts, 5.0, recovery=CounterRecovery(ledger))
    house.note(300)
    await house.uses(store, MONTH, tokens=100)
    assert await house.left(store, MONTH) == [900]
    ledger.away = False
    # Another gateway that has not just been refused; it puts back what both have used.
    assert await house.left(house.store(), MONTH) == [600]
    assert await house.left(store, MONTH) == [600]


class Cut:
    """A shared store that can be out of reach."""

    def __init__(self, inner):
        self.inner, self.away = inner, False

    async def reserve(self, reservation, *, urgent=True):
        if self.away:
            raise QuotaStoreUnavailable("away")
        return await self.inner.reserve(reservation, urgent=urgent)

    def settle(self, lease, actual):
        return self.inner.settle(lease, actual)

    def release(self, lease):
        return self.inner.release(lease)

    async def renew(self, leases):
        await self.inner.renew(leases)


async def test_local_grants_that_the_ledger_has_are_not_charged_again_when_redis_comes_back_empty(house):
    cut = Cut(house.store())

    async def ping():
        return not cut.away

    store = FailoverQuotaStore(cut, LocalQuotaStore(time.monotonic), ping, time.monotonic)
    await house.uses(store, MONTH, tokens=300)
    cut.away = True
    for _ in range(4):
        await house.uses(store, MONTH, tokens=50)
    assert store.away
    house.lose()
    cut.away = False
    # Another gateway is back first.
    await asyncio.sleep(0.01)
    assert await house.left(house.store(), MONTH) == [500]
    await store._settle_left_over()
    assert await house.left(house.store(), MONTH) == [500]


async def test_local_grants_that_were_not_put_back_are_charged(house):
    cut = Cut(house.store())

    async def ping():
        return not cut.away

    store = FailoverQuotaStore(cut, LocalQuotaStore(time.monotonic), ping, time.monotonic)
    await house.uses(store, MONTH, tokens=300)
    cut.away = True
    for _ in range(4):
        await house.uses(store, MONTH, tokens=50)
    cut.away = False
    await store._settle_left_over()
    assert await house.left(house.store(), MONTH) == [500]


async def test_in_a_cluster_too(cluster, tmp_path):
    house = House(f"sqlite:///{tmp_path}/usage.db", cluster, tmp_path / "journal")
    await schema.upgrade(house.database)
    house.note(300)
    assert await house.left(house.store(), MONTH, SPEND, MINUTE) == [700, 7000, 1000]
    await house.close()


async def test_a_gateway_goes_on_from_its_ledger_after_a_flush(gateway, own_valkey, tmp_path):
    limits = [{"total_tokens": 10_000, "per": "day", "reset": "calendar"}]
    settings = {"redis.url": own_valkey.url, "database.url": f"sqlite:///{tmp_path}/usage.db"}

    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **settings) as running:

        async def remaining():
            worker.then(tokens=4, prompt_tokens=10)
            async with running.chat(max_tokens=4) as response:
                await response.read()
                assert response.status == 200
            await running.until(lambda: running.idle)
            return int(response.headers["x-ratelimit-remaining-tokens"])

        before = [await remaining(), await remaining()]
        with redis.from_url(own_valkey.url) as client:
            client.flushall()
        assert await remaining() == before[1] - 14


async def test_a_window_of_the_calendar_that_has_ended_meanwhile_is_reserved_again(house):
    store, last_month = house.store(), WindowUsage(500.0, time.time() - 86_400)
    assert not await store._put_back(house.organisation, "tenant:t", [(MONTH, last_month)])
    house.note(20)
    assert await house.left(store, MONTH) == [980]


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_lost_whenever_nothing_counts_twice_and_only_what_was_under_way_is_missing(
    valkey, tmp_path, seed
):
    chance = random.Random(seed)
    house = House(f"sqlite:///{tmp_path}/usage.db", valkey, tmp_path / "journal")
    await schema.upgrade(house.database)
    budget = Limit(unit="total_tokens", amount=10**9, window=Window.of("month", "calendar"))
    stores, under_way, used, lost = [house.store(), house.store()], [], 0, 0
    for _ in range(60):
        what = chance.random()
        if what < 0.5:
            tokens = chance.randint(1, 1000)
            lease = await chance.choice(stores).reserve(house.asked(budget, tokens=tokens))
            under_way.append((lease, tokens))
        elif what < 0.9 and under_way:
            lease, tokens = under_way.pop(chance.randrange(len(under_way)))
            actual = chance.randint(0, tokens)
            await chance.choice(stores).settle(lease, Cost(prompt_tokens=actual))
            house.note(actual)
            used += actual
        elif what >= 0.9:
            lost += sum(tokens for _, tokens in under_way)
            house.lose()
    for lease, tokens in under_way:
        await stores[0].settle(lease, Cost(prompt_tokens=tokens))
        house.note(tokens)
        used += tokens
    (left,) = await house.left(stores[1], budget)
    assert used - lost <= budget.amount - left <= used
    house.lose()
    assert await house.left(stores[0], budget) == [budget.amount - used]
    await house.close()


class Neighbour:
    """Another gateway: a store, and a journal that is shipped when the test says so."""

    def __init__(self, house, directory):
        self.journal = Journal(directory, bytes_max=10**7)
        self.shipper = Shipper(self.journal, UsageStore(house.database))
        ledger = LedgerAccountUsage(self.shipper, AccountHours(house.database))
        self.recovery = CounterRecovery(ledger, clock=house.clock)
        self.store = RedisQuotaStore(house.scripts, 5.0, recovery=self.recovery)


async def test_what_was_under_way_or_not_shipped_at_a_loss_is_counted_again(house, tmp_path):
    here, there = Neighbour(house, tmp_path / "here"), Neighbour(house, tmp_path / "there")
    await house.left(here.store, MONTH)
    house.note(100, journal=here.journal)
    house.note(38, journal=there.journal)
    running = await there.store.reserve(house.asked(MONTH, tokens=24))
    house.lose()
    assert await house.left(here.store, MONTH) == [900]
    await there.store.settle(running, Cost(prompt_tokens=24))
    house.note(24, journal=there.journal)
    await there.shipper.ship()
    house.clock.advance(5)
    await here.recovery.recount()
    assert await house.left(here.store, MONTH) == [1000 - 100 - 38 - 24]


@pytest.mark.parametrize("seed", range(6))
async def test_whenever_redis_is_lost_a_count_in_a_quiet_moment_makes_it_exact(valkey, tmp_path, seed):
    """Never more than was used or reserved; after a loss, less by what was under way or not shipped, until then."""
    chance = random.Random(seed)
    house = House(f"sqlite:///{tmp_path}/usage.db", valkey, tmp_path / "journal")
    await schema.upgrade(house.database)
    budget = Limit(unit="total_tokens", amount=10**9, window=Window.of("month", "calendar"))
    gateways = [Neighbour(house, tmp_path / f"g{at}") for at in range(3)]
    under_way, used = [], 0

    async def ends(one):
        nonlocal used
        lease, tokens, gateway = one
        actual = chance.randint(0, tokens)
        await gateway.store.settle(lease, Cost(prompt_tokens=actual))
        house.note(actual, journal=gateway.journal)
        used += actual

    for _ in range(50):
        what, gateway = chance.random(), chance.choice(gateways)
        if what < 0.4:
            tokens = chance.randint(1, 1000)
            lease = await gateway.store.reserve(house.asked(budget, tokens=tokens))
            under_way.append((lease, tokens, gateway))
        elif what < 0.7 and under_way:
            await ends(under_way.pop(chance.randrange(len(under_way))))
        elif what < 0.8:
            await gateway.shipper.ship()
        elif what < 0.9:
            house.lose()
        else:
            house.clock.advance(chance.choice([1, 10, 100]))
            await gateway.recovery.recount()
        (left,) = await house.left(gateways[0].store, budget)
        assert budget.amount - left <= used + sum(tokens for _, tokens, _ in under_way)
    for one in under_way:
        await ends(one)
    for gateway in gateways:
        await gateway.shipper.ship()
    house.clock.advance(1000)
    for gateway in gateways:
        await gateway.recovery.recount()
    assert await house.left(gateways[0].store, budget) == [budget.amount - used]
    for gateway in gateways:
        gateway.journal.close()
    await house.close()


async def test_a_provider_has_what_it_answered_and_nothing_of_a_key_of_its_name(house):
    provider = f"p-{house.organisation}"
    requests = Limit(unit="requests", amount=10, window=Window.of("month", "calendar"))
    house.note(200, worker=provider)
    house.note(50, worker=provider, ago=3 * 3600.0)
    house.note(7, worker="another")
    house.note(9, key_id=provider)
    left = await house.left(house.store(), MONTH, SPEND, requests, scope=f"provider:{provider}")
    # Three hours ago may have been another month, or another window of a week.
    assert left in ([750, 10_000 - 2500, 7], [800, 10_000 - 2500, 8])
