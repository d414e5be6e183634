"""Time and loss in the quota script: on a real server, by the test's clock where that matters."""

import itertools

import pytest
import redis

from gateway.quotas.limit import Limit, Scope
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import (
    LEASE_SECONDS,
    Cost,
    IdempotencyKey,
    Lease,
    QuotaStoreUnavailable,
    Reservation,
)
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.clock import FakeClock
from tests.fakes.timed_quota_store import TIME, TimedQuotaStore

HOUR = Window.of("hour")
TOKENS = Limit(unit="total_tokens", amount=1000, window=Window(seconds=1e9))

numbers = itertools.count()


class Timed:
    """A store, the clock that it goes by, and how it loses everything that it knows of leases."""

    def __init__(self, store, clock, forget):
        self.store, self.clock, self.forget = store, clock, forget
        self.organisation = f"times{next(numbers)}"

    def pass_by(self, seconds):
        self.clock.now += seconds
        if isinstance(self.store, TimedQuotaStore):
            self.store.tell_time()

    def asked(self, tokens, key=None, limit=TOKENS):
        return Reservation(
            id=f"r{next(numbers)}",
            organisation=self.organisation,
            scopes=(Scope(name="t", limits=(limit,)),),
            cost=Cost(prompt_tokens=tokens),
            idempotency_key=IdempotencyKey(name=f"{self.organisation}{key}", fingerprint="f")
            if key is not None
            else None,
        )

    async def left(self):
        lease = await self.store.reserve(self.asked(0))
        await self.store.release(lease)
        return lease.limit_statuses[0].remaining


@pytest.fixture
def client(valkey):
    with redis.from_url(valkey.url) as connected:
        yield connected


@pytest.fixture
async def scripts(valkey):
    made = ScriptCaller(valkey.url)
    yield made
    await made.close()


@pytest.fixture(params=["local", "redis"])
def timed(request, client, scripts):
    clock = FakeClock(1_800_000_000.0)
    if request.param == "local":
        local = LocalQuotaStore(lambda: clock.now, lambda: clock.now)
        return Timed(local, clock, local._leases.clear)

    def forget():
        client.delete(*client.keys(f"rg:{{{made.organisation}}}:lease:*"))

    made = Timed(TimedQuotaStore(scripts, client, clock), clock, forget)
    return made


async def test_an_attempt_that_was_never_settled_stays_charged_beside_its_repeat(timed):
    first = await timed.store.reserve(timed.asked(100, key="k"))
    timed.pass_by(LEASE_SECONDS + 1)
    repeat = await timed.store.reserve(timed.asked(100, key="k"))
    assert (isinstance(repeat, Lease), await timed.left()) == (True, 800)
    await timed.store.settle(repeat, Cost(prompt_tokens=40))
    assert await timed.left() == 860
    await timed.store.settle(first, Cost(prompt_tokens=100))
    assert await timed.left() == 860


async def test_of_a_lease_that_was_lost_what_went_beyond_it_is_charged_all_the_same(timed):
    lease = await timed.store.reserve(timed.asked(100))
    timed.forget()
    await timed.store.settle(lease, Cost(prompt_tokens=130))
    assert await timed.left() == 870


async def test_a_decision_that_is_made_too_late_takes_nothing(client, scripts):
    clock = FakeClock(1_800_000_000.0)
    timed = Timed(TimedQuotaStore(scripts, client, clock), clock, None)
    assert await timed.left() == 1000
    client.set(TIME, str(round((clock.now + 60) * 1e6)))
    with pytest.raises(QuotaStoreUnavailable, match="too late"):
        await timed.store.reserve(timed.asked(100))
    clock.now += 60
    assert await timed.left() == 1000


async def test_what_is_used_is_kept_for_as_long_as_it_counts_and_not_much_longer(client, scripts):
    timed = Timed(RedisQuotaStore(scripts, timeout_seconds=5.0), None, None)
    await timed.store.reserve(timed.asked(500, limit=Limit(unit="total_tokens", amount=1000, window=HOUR)))
    (name,) = client.keys(f"rg:{{{timed.organisation}}}:used:*")
    # Half an hour until the bucket is whole again.
    assert 1_790_000 < client.pttl(name) <= 1_801_000
    rolling = Limit(unit="requests", amount=9, window=Window.of("day", "rolling"))
    await timed.store.reserve(timed.asked(1, limit=rolling))
    assert 86_390_000 < client.pttl(name) <= 86_401_000


@pytest.mark.parametrize("reset", ["calendar", "rolling"])
async def test_what_is_settled_after_its_window_changes_nothing_in_the_next(timed, reset):
    budget = Limit(unit="total_tokens", amount=1000, window=Window.of("second", reset))
    less, more = [await timed.store.reserve(timed.asked(100, limit=budget)) for _ in range(2)]
    timed.pass_by(1)
    await timed.store.reserve(timed.asked(50, limit=budget))
    await timed.store.settle(less, Cost(prompt_tokens=10))
    await timed.store.settle(more, Cost(prompt_tokens=300))
    last = await timed.store.reserve(timed.asked(0, limit=budget))
    assert last.limit_statuses[0].remaining == 950


async def test_a_week_begins_on_monday(timed):
    weekly = Limit(unit="requests", amount=9, window=Window.of("week", "calendar"))
    timed.pass_by(1_800_230_400 - 1 - timed.clock.now)  # 17 January 2027, a Sunday, its last second
    lease = await timed.store.reserve(timed.asked(0, limit=weekly))
    assert (lease.limit_statuses[0].remaining, lease.limit_statuses[0].reset_seconds) == (8, 1.0)
    timed.pass_by(1)
    lease = await timed.store.reserve(timed.asked(0, limit=weekly))
    assert (lease.limit_statuses[0].remaining, lease.limit_statuses[0].reset_seconds) == (8, 7 * 86400.0)
