"""The contract of QuotaStore: in the process, in Redis and in a cluster, and with leases ahead."""

import asyncio
import itertools
import time
from dataclasses import replace

import msgspec
import pytest

from gateway.quotas.escrow import Escrow
from gateway.quotas.limit import Limit, Scope, concurrency, scopes_for
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import (
    Cost,
    IdempotencyKey,
    Lease,
    QuotaStoreUnavailable,
    Refusal,
    RepeatedReservationRefused,
    Reservation,
)
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window, calendar_end
from radix_cache.redis.scripts import ScriptCaller

numbers = itertools.count()

WIDE = Scope(
    name="wide",
    limits=(
        Limit(unit="requests", amount=10_000, window=Window(seconds=1e10)),
        Limit(unit="total_tokens", amount=1_000_000, window=Window(seconds=1e10)),
        concurrency(200),
    ),
)
"""Wide enough for many at one time."""

REQUESTS = Limit(unit="requests", amount=5, window=Window(seconds=3600))
TOKENS = Limit(unit="total_tokens", amount=1000, window=Window(seconds=3600))


@pytest.fixture(params=["local", "redis", "cluster", "escrow"])
async def store(request):
    if request.param == "local":
        yield LocalQuotaStore(time.monotonic)
        return
    servers = request.getfixturevalue("cluster" if request.param == "cluster" else "valkey")
    scripts = ScriptCaller(servers.url)
    store = RedisQuotaStore(scripts, timeout_seconds=5.0)
    escrow = Escrow(store)
    yield escrow if request.param == "escrow" else store
    await escrow.close()
    await scripts.close()


@pytest.fixture
def ask():
    """Makes reservations of one organisation of its own."""
    organisation = f"org{next(numbers)}"

    def make(*scopes, prompt=10, output=0, id=None):
        return Reservation(
            id=id or f"r{next(numbers)}",
            organisation=organisation,
            scopes=scopes,
            cost=Cost(prompt_tokens=prompt, output_tokens=output),
        )

    return make


async def left(store, ask, *scopes):
    """What remains of every limit, seen without taking anything."""
    if isinstance(store, Escrow):
        await store.close()
    lease = await store.reserve(
        msgspec.structs.replace(ask(*scopes, prompt=0), cost=Cost(prompt_tokens=0, requests=0))
    )
    await store.release(lease)
    return [s.remaining for s in lease.limit_statuses if s.unit != "concurrency"]


async def test_a_limit_lets_exactly_its_number_of_requests_through(store, ask):
    scope = Scope(name="t", limits=(REQUESTS,))
    outcomes = [type(await store.reserve(ask(scope))) for _ in range(7)]
    assert outcomes == [Lease] * 5 + [Refusal] * 2


async def test_hundred_racers_get_exactly_what_there_is(store, ask):
    scope = Scope(name="t", limits=(REQUESTS,))
    outcomes = await asyncio.gather(*(store.reserve(ask(scope)) for _ in range(100)))
    assert sum(isinstance(outcome, Lease) for outcome in outcomes) == 5


async def test_a_refusal_names_the_limit_and_the_true_wait(store, ask):
    scope = Scope(name="t", limits=(REQUESTS,))
    for _ in range(5):
        await store.reserve(ask(scope))
    refusal = await store.reserve(ask(scope))
    assert (refusal.scope, refusal.unit, refusal.amount) == ("t", "requests", 5)
    assert refusal.retry_after_seconds == pytest.approx(720, abs=5)
    assert refusal.limit_statuses[0].remaining == 0


async def test_a_refusal_takes_nothing_from_any_scope(store, ask):
    tenant = Scope(name="tenant", limits=(REQUESTS, TOKENS, concurrency(10)))
    poor = Scope(name="poor", limits=(Limit(unit="requests", amount=1, window=Window(seconds=3600)),))
    assert isinstance(await store.reserve(ask(poor)), Lease)
    before = await left(store, ask, tenant)
    assert isinstance(await store.reserve(ask(tenant, poor)), Refusal)
    assert await left(store, ask, tenant) == before


async def test_tokens_are_reserved_with_the_prompt_and_the_expected_output(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    await store.reserve(ask(scope, prompt=100, output=200))
    assert await left(store, ask, scope) == [700]


async def test_settling_replaces_the_estimate_by_what_was_used(store, ask):
    scope = Scope(name="t", limits=(TOKENS, REQUESTS))
    lease = await store.reserve(ask(scope, prompt=100, output=400))
    await store.settle(lease, Cost(prompt_tokens=100, output_tokens=20))
    assert await left(store, ask, scope) == [880, 4]


async def test_settling_can_charge_more_than_was_reserved(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    lease = await store.reserve(ask(scope, prompt=100, output=100))
    await store.settle(lease, Cost(prompt_tokens=100, output_tokens=500))
    assert await left(store, ask, scope) == [400]


async def test_releasing_gives_everything_back(store, ask):
    scope = Scope(name="t", limits=(TOKENS, REQUESTS, concurrency(1)))
    lease = await store.reserve(ask(scope, prompt=100, output=400))
    await store.release(lease)
    assert await left(store, ask, scope) == [1000, 5]


async def test_ending_twice_is_ending_once(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    lease = await store.reserve(ask(scope, prompt=100, output=100))
    await store.settle(lease, Cost(prompt_tokens=100, output_tokens=50))
    await store.settle(lease, Cost(prompt_tokens=100, output_tokens=50))
    await store.release(lease)
    assert await left(store, ask, scope) == [850]


async def test_a_repeated_reserve_is_granted_again_and_charged_once(store, ask):
    scope = Scope(name="t", limits=(TOKENS, REQUESTS, concurrency(1)))
    reservation = ask(scope, prompt=100, output=100)
    first, second = await store.reserve(reservation), await store.reserve(reservation)
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    await store.release(second)
    assert await left(store, ask, scope) == [1000, 5]


async def test_a_reserve_that_comes_after_its_release_takes_nothing(store, ask):
    scope = Scope(name="t", limits=(TOKENS, concurrency(1)))
    reservation = ask(scope, prompt=100)
    await store.release(Lease(reservation=reservation))
    with pytest.raises(QuotaStoreUnavailable):
        await store.reserve(reservation)
    assert await left(store, ask, scope) == [1000]


async def test_concurrency_is_taken_by_a_lease_and_freed_by_its_end(store, ask):
    scope = Scope(name="t", limits=(concurrency(2),))
    first, second = await store.reserve(ask(scope)), await store.reserve(ask(scope))
    refusal = await store.reserve(ask(scope))
    assert (refusal.unit, refusal.amount) == ("concurrency", 2)
    assert refusal.retry_after_seconds > 0
    await store.release(first)
    third = await store.reserve(ask(scope))
    assert isinstance(third, Lease)
    await store.settle(second, Cost(prompt_tokens=10))
    assert isinstance(await store.reserve(ask(scope)), Lease)


async def test_a_cost_above_the_limit_is_refused_as_one_that_never_fits(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    refusal = await store.reserve(ask(scope, prompt=1001))
    assert refusal.retry_after_seconds is None
    assert isinstance(await store.reserve(ask(scope, prompt=1000)), Lease)


async def test_a_refusal_has_the_longest_wait_of_several_limits(store, ask):
    fast = Limit(unit="requests", amount=1, window=Window(seconds=10))
    scope = Scope(name="t", limits=(fast, replace(REQUESTS, amount=1, window=Window(seconds=1000))))
    await store.reserve(ask(scope))
    refusal = await store.reserve(ask(scope))
    assert refusal.retry_after_seconds == pytest.approx(1000, abs=5)


async def test_limits_of_the_same_kind_hold_at_once_and_each_is_shown(store, ask):
    wide = Limit(unit="requests", amount=100, window=Window(seconds=86400))
    lease = await store.reserve(ask(Scope(name="t", limits=(wide, REQUESTS))))
    assert [status.remaining for status in lease.limit_statuses] == [99, 4]


async def test_scopes_of_the_same_name_in_two_organisations_are_apart(store, ask):
    scope = Scope(name="t", limits=(REQUESTS,))
    for _ in range(5):
        await store.reserve(ask(scope))
    other = msgspec.structs.replace(ask(scope), organisation="somebody else")
    assert isinstance(await store.reserve(other), Lease)


async def test_renewing_keeps_a_lease(store, ask):
    scope = Scope(name="t", limits=(concurrency(1),))
    lease = await store.reserve(ask(scope))
    await store.renew([lease])
    assert isinstance(await store.reserve(ask(scope)), Refusal)


async def test_standings_show_when_a_limit_is_whole_again(store, ask):
    lease = await store.reserve(ask(Scope(name="t", limits=(REQUESTS,))))
    assert lease.limit_statuses[0].remaining == 4
    assert lease.limit_statuses[0].reset_seconds == pytest.approx(720, abs=5)


async def test_a_wide_account_is_as_exact_as_a_narrow_one(store, ask):
    leases = []
    for number in range(150):
        leases.append(await store.reserve(ask(WIDE, prompt=100, output=50)))
        remaining = [status.remaining for status in leases[-1].limit_statuses]
        assert remaining == [10_000 - number - 1, 1_000_000 - 150 * (number + 1), 200 - number - 1]
    for lease in leases[:100]:
        await store.settle(lease, Cost(prompt_tokens=100, output_tokens=10))
    for lease in leases[100:]:
        await store.release(lease)
    assert await left(store, ask, WIDE) == [9_900, 1_000_000 - 110 * 100]


async def test_a_wide_account_has_no_more_places_than_its_limit(store, ask):
    outcomes = [await store.reserve(ask(WIDE)) for _ in range(230)]
    assert [type(outcome) for outcome in outcomes] == [Lease] * 200 + [Refusal] * 30
    await store.release(outcomes[0])
    assert isinstance(await store.reserve(ask(WIDE)), Lease)
    assert isinstance(await store.reserve(ask(WIDE)), Refusal)


async def test_a_wide_account_sells_everything_and_no_more(store, ask):
    scope = replace(WIDE, limits=WIDE.limits[:2])
    outcomes = [await store.reserve(ask(scope, prompt=10_000)) for _ in range(110)]
    assert [type(outcome) for outcome in outcomes] == [Lease] * 100 + [Refusal] * 10


async def test_using_more_than_reserved_is_charged_on_a_wide_account_too(store, ask):
    for _ in range(20):
        lease = await store.reserve(ask(WIDE, prompt=100))
        await store.settle(lease, Cost(prompt_tokens=100, output_tokens=20_000))
    assert await left(store, ask, WIDE) == [9_980, 1_000_000 - 20 * 20_100]


BUDGET = Limit(unit="total_tokens", amount=1000, window=Window.of("month", "calendar"))


async def test_several_windows_of_one_unit_hold_at_once(store, ask):
    rolling = Limit(unit="total_tokens", amount=300, window=Window.of("day", "rolling"))
    scope = Scope(name="t", limits=(TOKENS, BUDGET, rolling))
    assert isinstance(await store.reserve(ask(scope, prompt=250)), Lease)
    refusal = await store.reserve(ask(scope, prompt=60))
    assert refusal.limit == rolling
    assert refusal.retry_after_seconds == pytest.approx(86400, abs=30)
    assert await left(store, ask, scope) == [750, 750, 50]


async def test_a_budget_of_the_calendar_begins_again_when_its_month_is_over(store, ask):
    scope = Scope(name="t", limits=(BUDGET,))
    await store.reserve(ask(scope, prompt=1000))
    refusal = await store.reserve(ask(scope, prompt=1))
    end = calendar_end("month", time.time()) - time.time()
    assert refusal.retry_after_seconds == pytest.approx(end, abs=30)


async def test_every_kind_of_token_and_money_has_limits_of_its_own(store, ask):
    units = ("requests", "input_tokens", "cached_tokens", "output_tokens", "total_tokens", "spend")
    scope = Scope(name="t", limits=tuple(replace(TOKENS, unit=unit) for unit in units))
    reservation = msgspec.structs.replace(
        ask(scope), cost=Cost(prompt_tokens=100, cached_tokens=None, output_tokens=50, spend=300)
    )
    lease = await store.reserve(reservation)
    # Any token of the prompt may turn out to be cached or not.
    assert [s.remaining for s in lease.limit_statuses] == [999, 900, 900, 950, 850, 700]
    await store.settle(lease, Cost(prompt_tokens=100, cached_tokens=80, output_tokens=20, spend=90))
    assert await left(store, ask, scope) == [999, 980, 920, 980, 880, 910]


async def test_a_limit_that_is_raised_for_a_time_keeps_what_is_used(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    await store.reserve(ask(scope, prompt=1000))
    assert isinstance(await store.reserve(ask(scope, prompt=1)), Refusal)
    raised = Scope(name="t", limits=(replace(TOKENS, amount=1500),))
    assert isinstance(await store.reserve(ask(raised, prompt=400)), Lease)
    assert await left(store, ask, raised) == [100]
    assert (await store.reserve(ask(scope, prompt=1))).limit_statuses[0].remaining == 0


async def test_limits_of_models_are_accounts_of_their_own(store, ask):
    small = replace(TOKENS, amount=100, models=("llama-*",))
    wide = Scope(name="t", limits=(TOKENS, small, concurrency(5), concurrency(1, ("llama-*",))))
    llama, other = (scopes_for((wide,), model)[0] for model in ("llama-8b", "qwen"))
    first = await store.reserve(ask(llama, prompt=90))
    assert isinstance(first, Lease)
    assert (await store.reserve(ask(llama, prompt=5))).limit == wide.limits[3]
    await store.settle(first, Cost(prompt_tokens=90))
    assert (await store.reserve(ask(llama, prompt=20))).limit == small
    assert isinstance(await store.reserve(ask(other, prompt=20)), Lease)
    assert await left(store, ask, llama) == [890, 10]


async def test_a_limit_in_shadow_refuses_no_request_and_counts_what_it_would_have_let_through(store, ask):
    shadow = replace(TOKENS, amount=100, mode="shadow")
    scope = Scope(name="t", limits=(TOKENS, shadow))
    first, second, third = [await store.reserve(ask(scope, prompt=tokens)) for tokens in (60, 60, 40)]
    assert [[s.limit for s in lease.shadow_refusals] for lease in (first, second, third)] == [
        [],
        [shadow],
        [],
    ]
    for lease in (first, second, third):
        await store.settle(lease, Cost(prompt_tokens=30))
    assert await left(store, ask, scope) == [910, 40]


async def test_a_soft_limit_refuses_no_request_and_counts_all(store, ask):
    scope = Scope(name="t", limits=(replace(TOKENS, amount=100, mode="soft"), TOKENS))
    for _ in range(3):
        assert isinstance(await store.reserve(ask(scope, prompt=60)), Lease)
    assert await left(store, ask, scope) == [0, 820]


async def test_an_alert_comes_once_a_window_however_often_its_share_is_passed(store, ask):
    told = []
    events = getattr(store, "_store", store)._events
    events.on_alert.append(told.append)
    scope = Scope(name="tenant:t", limits=(replace(BUDGET, alert_at=0.5),))

    async def use(tokens):
        lease = await store.reserve(msgspec.structs.replace(ask(scope, prompt=tokens), tenant="t"))
        await store.settle(lease, Cost(prompt_tokens=tokens))
        await asyncio.sleep(0)

    for tokens in (499, 1, 100, 100):
        await use(tokens)
    assert [(a.tenant, a.scope, a.used, a.amount, a.share) for a in told] == [
        ("t", "tenant:t", 500, 1000, 0.5)
    ]
    assert events.alerts == {("tenant:t", "total_tokens/calendar month"): 1}


def once(reservation, fingerprint="f", repeats_max=3):
    key = IdempotencyKey(
        name=f"key of {reservation.organisation}", fingerprint=fingerprint, repeats_max=repeats_max
    )
    return msgspec.structs.replace(reservation, idempotency_key=key)


async def test_each_attempt_under_a_key_is_charged(store, ask):
    scope = Scope(name="t", limits=(TOKENS, REQUESTS, concurrency(1)))
    for used in (70, 100, 20):
        lease = await store.reserve(once(ask(scope, prompt=50, output=100)))
        assert isinstance(lease, Lease)
        await store.settle(lease, Cost(prompt_tokens=20, output_tokens=used - 20))
    assert await left(store, ask, scope) == [1000 - 190, 2]


async def test_a_repeat_while_the_first_is_running_is_refused(store, ask):
    scope = Scope(name="t", limits=(TOKENS, concurrency(5)))
    reservation = once(ask(scope, prompt=100))
    lease = await store.reserve(reservation)
    with pytest.raises(RepeatedReservationRefused, match="running"):
        await store.reserve(once(ask(scope, prompt=100)))
    assert isinstance(await store.reserve(reservation), Lease), "the same command again is no repeat"
    await store.release(lease)
    assert await left(store, ask, scope) == [1000]
    assert isinstance(await store.reserve(once(ask(scope, prompt=100))), Lease)


async def test_a_key_is_for_one_request_and_so_many_attempts(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    for _ in range(2):
        lease = await store.reserve(once(ask(scope, prompt=100), repeats_max=2))
        await store.settle(lease, Cost(prompt_tokens=100))
    with pytest.raises(RepeatedReservationRefused, match="used up"):
        await store.reserve(once(ask(scope, prompt=100), repeats_max=2))
    with pytest.raises(RepeatedReservationRefused, match="different"):
        await store.reserve(once(ask(scope, prompt=100), fingerprint="g"))
    assert await left(store, ask, scope) == [800]


async def test_an_attempt_that_was_given_back_is_as_if_it_had_not_been(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    for _ in range(4):
        await store.release(await store.reserve(once(ask(scope, prompt=100), repeats_max=1)))
    lease = await store.reserve(once(ask(scope, prompt=100), repeats_max=1))
    await store.settle(lease, Cost(prompt_tokens=60))
    assert await left(store, ask, scope) == [940]


async def test_a_repeat_for_which_too_little_is_left_is_refused(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    await store.settle(await store.reserve(once(ask(scope, prompt=900))), Cost(prompt_tokens=900))
    assert isinstance(await store.reserve(once(ask(scope, prompt=900))), Refusal)
    assert isinstance(await store.reserve(once(ask(scope, prompt=100))), Lease)


async def test_what_has_ended_is_not_kept_by_renewing_it(store, ask):
    scope = Scope(name="t", limits=(concurrency(1),))
    lease = await store.reserve(ask(scope))
    await store.settle(lease, Cost(prompt_tokens=1))
    await store.renew([lease])
    assert isinstance(await store.reserve(ask(scope)), Lease)
    with pytest.raises(QuotaStoreUnavailable):
        await store.reserve(lease.reservation)


async def test_renewing_does_not_count_what_a_limit_that_is_tried_out_has_not_counted(store, ask):
    scope = Scope(name="t", limits=(replace(concurrency(1), mode="shadow"),))
    first, second = await store.reserve(ask(scope)), await store.reserve(ask(scope))
    assert (len(first.shadow_refusals), len(second.shadow_refusals)) == (0, 1)
    await store.renew([second])
    await store.release(first)
    assert (await store.reserve(ask(scope))).shadow_refusals == ()


async def leases_of(store, ask, scope, count, prompt=100):
    return [await store.reserve(ask(scope, prompt=prompt)) for _ in range(count)]


async def test_leases_are_settled_and_others_reserved_in_one_step(store, ask):
    scope = Scope(name="t", limits=(TOKENS, REQUESTS, concurrency(3)))
    first, second = await leases_of(store, ask, scope, 2)
    ended = [(first, Cost(prompt_tokens=30)), (second, Cost(prompt_tokens=120))]
    ahead = [ask(scope, prompt=100), ask(scope, prompt=100)]
    for _ in range(2):  # The same call again is one call.
        granted = await store.settle_and_reserve(ended, ahead)
        assert (granted.count, granted.refused) == (2, False)
        assert [status.remaining for status in granted.limit_statuses] == [1000 - 150 - 200, 1, 1]
    assert isinstance(await store.reserve(ask(scope)), Lease)
    assert (await store.reserve(ask(scope, prompt=0))).unit in ("requests", "concurrency")
    for reservation in ahead:
        await store.settle(Lease(reservation=reservation), Cost(prompt_tokens=40))
    assert await left(store, ask, scope) == [1000 - 150 - 2 * 40 - 10, 0]


async def test_leases_are_settled_in_one_step_without_others_ahead(store, ask):
    scope = Scope(name="t", limits=(TOKENS, concurrency(2)))
    ended = [(lease, Cost(prompt_tokens=10)) for lease in await leases_of(store, ask, scope, 2)]
    assert (await store.settle_and_reserve(ended, [])).count == 0
    assert await left(store, ask, scope) == [980]
    assert len([each for each in await leases_of(store, ask, scope, 3) if isinstance(each, Lease)]) == 2


@pytest.mark.parametrize(
    ("limits", "count"),
    [((TOKENS,), 3), ((WIDE.limits[0], concurrency(2)), 2), ((replace(TOKENS, mode="shadow"),), 3)],
    ids=["tokens", "concurrency", "a shadow limit"],
)
async def test_no_more_is_reserved_ahead_than_fits_every_limit(store, ask, limits, count):
    scope = Scope(name="t", limits=limits)
    [lease] = await leases_of(store, ask, scope, 1)
    ahead = [ask(scope, prompt=300) for _ in range(4)]
    granted = await store.settle_and_reserve([(lease, Cost(prompt_tokens=100))], ahead)
    assert (granted.count, granted.refused) == (count, True)
    for reservation in ahead[:count]:
        await store.release(Lease(reservation=reservation))
    assert (await left(store, ask, scope))[0] in (900, 9999)


async def test_a_lease_that_was_given_back_before_its_call_is_not_granted(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    [lease] = await leases_of(store, ask, scope, 1)
    given_back = ask(scope, prompt=100)
    await store.release(Lease(reservation=given_back))
    try:
        granted = await store.settle_and_reserve([(lease, Cost(prompt_tokens=1))], [given_back])
        assert (granted.count, granted.refused) == (0, True)
    except QuotaStoreUnavailable:
        pass
    assert await left(store, ask, scope) == [999]


async def test_leases_that_were_not_renewed_are_charged_what_exceeds_their_reservation(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    unknown = Lease(reservation=ask(scope, prompt=100))
    await store.settle_and_reserve([(unknown, Cost(prompt_tokens=130))], [])
    assert await left(store, ask, scope) == [970]


async def test_an_alert_of_leases_that_are_settled_together_comes_once(store, ask):
    alerts = []
    getattr(store, "_store", store)._events.on_alert.append(alerts.append)
    scope = Scope(name="tenant:t", limits=(replace(BUDGET, alert_at=0.5),))
    leases = await leases_of(store, ask, scope, 3, prompt=300)
    await store.settle_and_reserve([(lease, Cost(prompt_tokens=300)) for lease in leases], [])
    await asyncio.sleep(0)
    assert [(alert.scope, alert.used) for alert in alerts] == [("tenant:t", 900)]


def together(reservations):
    """The same reservations with one record for all of them."""
    record = f"together{next(numbers)}"
    return [
        msgspec.structs.replace(each, id=f"{record}:{number}", record=record, number=number)
        for number, each in enumerate(reservations, start=1)
    ]


async def granted_together(store, ask, scope, count, prompt=100):
    """Leases that were reserved by one call, twice made, and share a record."""
    [first] = await leases_of(store, ask, scope, 1)
    ahead = together([ask(scope, prompt=prompt) for _ in range(count)])
    for _ in range(2):
        granted = await store.settle_and_reserve([(first, Cost(prompt_tokens=0))], ahead)
        assert (granted.count, granted.refused) == (count, False)
    return [Lease(reservation=each) for each in ahead]


async def test_leases_of_one_record_end_each_by_itself_and_once(store, ask):
    scope = Scope(name="t", limits=(TOKENS, concurrency(5)))
    one, two, three, four = await granted_together(store, ask, scope, 4)
    for _ in range(2):
        await store.settle_and_reserve([(two, Cost(prompt_tokens=10)), (four, Cost(prompt_tokens=110))], [])
        assert await left(store, ask, scope) == [1000 - 10 - 110 - 200]
    for _ in range(2):
        await store.settle(one, Cost(prompt_tokens=20))
        await store.release(three)
        await store.settle(four, Cost(prompt_tokens=500))
        await store.settle_and_reserve([(three, Cost(prompt_tokens=500)), (one, Cost(prompt_tokens=0))], [])
    assert await left(store, ask, scope) == [1000 - 10 - 110 - 20]
    assert len([each for each in await leases_of(store, ask, scope, 6) if isinstance(each, Lease)]) == 5


async def test_each_lease_of_one_record_takes_a_place_until_it_ends(store, ask):
    scope = Scope(name="t", limits=(concurrency(3),))
    one, two = await granted_together(store, ask, scope, 2)
    [last] = await leases_of(store, ask, scope, 1)
    assert isinstance(await store.reserve(ask(scope)), Refusal)
    await store.settle(one, Cost(prompt_tokens=1))
    await store.renew([one, two, last])
    assert isinstance(await store.reserve(ask(scope)), Lease)
    assert isinstance(await store.reserve(ask(scope)), Refusal)


async def test_leases_of_a_record_that_were_not_granted_give_nothing_back(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    [first] = await leases_of(store, ask, scope, 1)
    ahead = together([ask(scope, prompt=400) for _ in range(4)])
    granted = await store.settle_and_reserve([(first, Cost(prompt_tokens=100))], ahead)
    assert (granted.count, granted.refused) == (2, True)
    for reservation in reversed(ahead):
        await store.release(Lease(reservation=reservation))
    assert await left(store, ask, scope) == [900]


async def test_no_lease_of_a_record_is_charged_that_was_given_back_before_its_call(store, ask):
    scope = Scope(name="t", limits=(TOKENS,))
    [lease] = await leases_of(store, ask, scope, 1)
    ahead = together([ask(scope, prompt=100) for _ in range(2)])
    for reservation in ahead:
        await store.release(Lease(reservation=reservation))
    try:
        granted = await store.settle_and_reserve([(lease, Cost(prompt_tokens=1))], ahead)
        assert (granted.count, granted.refused) == (0, True)
    except QuotaStoreUnavailable:
        pass
    assert await left(store, ask, scope) == [999]
