"""Leases ahead against plain sums: several gateways over one store sell no more than there is, and lose nothing."""

import asyncio
import itertools
from collections import Counter
from unittest import mock

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.quotas import escrow, escrow_policy
from gateway.quotas.escrow import Escrow
from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import Cost, Lease, Refusal, Reservation
from policies.admission.limit_windows import Window
from tests.fakes.clock import FakeClock

TOKENS, RUNNING = 400, 30
SCOPE = Scope(
    name="t",
    # Long: over a test nothing refills, so that sums are exact.
    limits=(Limit(unit="total_tokens", amount=TOKENS, window=Window(seconds=1e9)), concurrency(RUNNING)),
)

numbers = itertools.count()
gateways = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), gateways, st.integers(1, 40)),
        st.tuples(st.just("leave"), gateways, st.integers(1, 40)),
        st.tuples(st.just("settle"), st.integers(0, 100), st.integers(0, 40)),
        st.tuples(st.just("release"), st.integers(0, 100), st.none()),
        st.tuples(st.just("flush"), gateways, st.none()),
        st.tuples(st.just("wait"), st.none(), st.sampled_from([0.001, 0.1, 0.6, 1.5])),
    ),
    max_size=60,
)


class Yielding(LocalQuotaStore):
    """Decides at once, answers a turn of the event loop later, and undoes decisions that no caller hears."""

    async def reserve(self, reservation, *, urgent=True):
        decision = await super().reserve(reservation, urgent=urgent)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.release(Lease(reservation=reservation))
            raise
        return decision

    def settle_and_reserve(self, ended, ahead):
        decided = super().settle_and_reserve(ended, ahead)

        async def later():
            await asyncio.sleep(0)
            return await decided

        return later()


def asked(tokens: int, scope: Scope = SCOPE) -> Reservation:
    return Reservation(
        id=f"r{next(numbers)}",
        organisation="o",
        scopes=(scope,),
        cost=Cost(prompt_tokens=tokens, cached_tokens=None),
        model="m",
    )


async def left(store) -> tuple[int, int]:
    """Tokens and places."""
    looking = msgspec.structs.replace(asked(0), cost=Cost(prompt_tokens=0, requests=0))
    decision = await LocalQuotaStore.reserve(store, looking)
    if isinstance(decision, Lease):
        store.release(decision)
    tokens, places = (status.remaining for status in decision.limit_statuses)
    return tokens, places + isinstance(decision, Lease)


async def played(script) -> None:
    clock = FakeClock()
    store = Yielding(clock)
    stores = [Escrow(store, clock=clock) for _ in range(3)]
    running: list[tuple[Escrow, Lease]] = []
    used = 0
    for what, which, tokens in script:
        if what == "reserve":
            decision = await stores[which].reserve(asked(tokens))
            if isinstance(decision, Lease):
                assert decision.reservation.cost.prompt_tokens >= tokens
                running.append((stores[which], decision))
            else:
                assert isinstance(decision, Refusal)
        elif what == "leave":
            task = asyncio.ensure_future(stores[which].reserve(asked(tokens)))
            await asyncio.sleep(0)
            task.cancel()
            [done] = await asyncio.gather(task, return_exceptions=True)
            if isinstance(done, Lease):
                running.append((stores[which], done))
        elif what == "flush":
            stores[which].flush()
        elif what == "wait":
            clock.advance(tokens)
            for one in stores:
                sweeping = asyncio.ensure_future(one.run())
                await asyncio.sleep(0)
                sweeping.cancel()
        elif running:
            by, lease = running.pop(which % len(running))
            if what == "settle":
                spent = min(tokens, lease.reservation.cost.prompt_tokens)
                by.settle(lease, Cost(prompt_tokens=spent))
                used += spent
            else:
                by.release(lease)
        ids = [lease.reservation.id for _, lease in running]
        assert len(ids) == len(set(ids)), "nobody has the lease of somebody else"
        reserved = sum(lease.reservation.cost.prompt_tokens for _, lease in running)
        tokens_left, places_left = await left(store)
        assert used + reserved <= TOKENS - tokens_left <= TOKENS
        assert len(running) <= RUNNING - places_left <= RUNNING
    for by, lease in running:
        by.release(lease)
    for one in stores:
        await one.close()
    assert await left(store) == (TOKENS - used, RUNNING)


FEW = 12


async def used_at(limit: Limit, script) -> list[float]:
    """The moments at which requests took one unit of `limit`, whenever it was reserved."""
    clock, scope, uses = FakeClock(), Scope(name="t", limits=(limit,)), []
    store = Yielding(clock, clock)
    stores = [Escrow(store, clock=clock) for _ in range(2)]
    for which, many, pause in script:
        for _ in range(many):
            decision = await stores[which].reserve(asked(1, scope))
            if isinstance(decision, Lease):
                uses.append(clock())
                stores[which].settle(decision, Cost(prompt_tokens=1))
                stores[which].flush()
            await asyncio.sleep(0)
        clock.advance(pause)
    for one in stores:
        await one.close()
    return uses


bursts = st.lists(
    # Pauses that add up without a rounding, so that it is clear in which second a use was.
    st.tuples(
        st.integers(0, 1), st.integers(1, 2 * FEW), st.sampled_from([1 / 1024, 1 / 64, 1 / 8, 3 / 8, 7 / 8])
    ),
    max_size=12,
)


@given(script=bursts)
def test_a_window_of_the_calendar_has_what_was_used_in_it(script):
    limit = Limit(unit="requests", amount=FEW, window=Window.of("second", "calendar"))
    with mock.patch.multiple(escrow_policy, LEFT_MIN=1):
        uses = asyncio.run(used_at(limit, script))
    assert all(count <= FEW for count in Counter(map(int, uses)).values())


@given(script=steps)
def test_nothing_is_sold_twice_and_everything_comes_back(script):
    near = {"LEFT_MIN": 2, "LEFT_OF_LONG_MIN": 2, "LEFT_CONCURRENT_SHARE": 0.0, "CONCURRENT_EACH": 1}
    with mock.patch.multiple(escrow_policy, **near), mock.patch.object(escrow, "SWEEP_SECONDS", 0):
        asyncio.run(played(script))
