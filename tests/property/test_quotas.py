"""Quotas against plain sums: no order of reserving, settling, releasing and repeating sells or loses too much."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import Cost, Lease, QuotaStore, Refusal, Reservation
from gateway.quotas.redis_store import RedisQuotaStore
from policies.admission.limit_windows import Window
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.clock import FakeClock

LONG = 1e7
"""Seconds. Over a test nothing refills, so that sums can be exact."""

AMOUNTS = {"a": 40, "b": 100}
CONCURRENCY = 3

numbers = itertools.count()


class QuotaMachine(RuleBasedStateMachine):
    """One organisation with two scopes. The model is what was taken from each, and the running requests."""

    leases = Bundle("leases")
    new_store: Callable[[], QuotaStore]
    runner: asyncio.Runner
    one_record = False
    """Whether leases that are reserved by one call share a record."""

    def __init__(self) -> None:
        super().__init__()
        self.store = type(self).new_store()
        self.organisation = f"property{next(numbers)}"
        self.taken = dict.fromkeys(AMOUNTS, 0)
        self.running: dict[str, set[str]] = {name: set() for name in AMOUNTS}

    def scope(self, name: str) -> Scope:
        limit = Limit(unit="total_tokens", amount=AMOUNTS[name], window=Window(seconds=LONG))
        return Scope(name=name, limits=(limit, concurrency(CONCURRENCY)))

    def do(self, work: Callable[[], Any]) -> Any:
        async def wait() -> Any:
            return await work()

        return type(self).runner.run(wait())

    @rule(target=leases, names=st.sampled_from([("a",), ("b",), ("a", "b")]), tokens=st.integers(0, 50))
    def reserve(self, names, tokens):
        reservation = Reservation(
            id=f"r{next(numbers)}",
            organisation=self.organisation,
            scopes=tuple(self.scope(name) for name in names),
            cost=Cost(prompt_tokens=tokens),
        )
        fits = all(
            self.taken[name] + tokens <= AMOUNTS[name] and len(self.running[name]) < CONCURRENCY
            for name in names
        )
        decision = self.do(lambda: self.store.reserve(reservation))
        assert isinstance(decision, Lease if fits else Refusal)
        if fits:
            for name in names:
                self.taken[name] += tokens
                self.running[name].add(reservation.id)
            return decision
        return None

    @rule(lease=leases)
    def reserve_again(self, lease):
        """A repeated command (its reply was lost) changes nothing."""
        if lease is not None:
            assert isinstance(self.do(lambda: self.store.reserve(lease.reservation)), Lease)

    @rule(lease=consumes(leases), used=st.integers(0, 60), times=st.integers(1, 2))
    def settle(self, lease, used, times):
        if lease is None:
            return
        for _ in range(times):
            self.do(lambda: self.store.settle(lease, Cost(prompt_tokens=used)))
        self.ended(lease, used)

    @rule(lease=consumes(leases), times=st.integers(1, 2))
    def release(self, lease, times):
        if lease is None:
            return
        for _ in range(times):
            self.do(lambda: self.store.release(lease))
        self.ended(lease, 0)

    @rule(
        target=leases,
        first=consumes(leases),
        used=st.integers(0, 60),
        tokens=st.integers(0, 50),
        count=st.integers(0, 3),
        times=st.integers(1, 2),
    )
    def settle_and_reserve(self, first, used, tokens, count, times):
        """Settling together with reserving ahead is the same as one after the other, and as often as it is made."""
        if first is None:
            return None
        names = [scope.name for scope in first.reservation.scopes]
        ahead = [
            msgspec.structs.replace(
                first.reservation, id=f"r{next(numbers)}", cost=Cost(prompt_tokens=tokens)
            )
            for _ in range(count)
        ]
        if self.one_record:
            record = f"record{next(numbers)}"
            ahead = [
                msgspec.structs.replace(each, id=f"{record}:{number}", record=record, number=number)
                for number, each in enumerate(ahead, start=1)
            ]
        ended = [(first, Cost(prompt_tokens=used))]
        self.ended(first, used)
        places = min(CONCURRENCY - len(self.running[name]) for name in names)
        room = min(AMOUNTS[name] - self.taken[name] for name in names)
        fits = 0 if room < 0 else min(count, places, room // tokens if tokens else places)
        for _ in range(times):
            granted = self.do(lambda: self.store.settle_and_reserve(ended, ahead))
            # The second time the store decides on those that did not fit once more.
            assert (granted.count, granted.refused) == (fits, fits < count)
        for reservation in ahead[:fits]:
            for name in names:
                self.taken[name] += tokens
                self.running[name].add(reservation.id)
        if fits and (fits == 1 or self.one_record):
            self.give_back(ahead[1:fits])
            return Lease(reservation=ahead[0])
        return self.give_back(ahead[:fits])

    def give_back(self, reservations: Sequence[Reservation]) -> None:
        """Give back leases that no later rule takes."""
        for reservation in reservations:
            lease = Lease(reservation=reservation)
            self.do(partial(self.store.release, lease))
            self.ended(lease, 0)

    def ended(self, lease: Lease, used: int) -> None:
        for held in lease.reservation.scopes:
            self.taken[held.name] += used - lease.reservation.cost.prompt_tokens
            self.running[held.name].discard(lease.reservation.id)

    @invariant()
    def what_is_left_is_what_was_not_taken(self):
        for name in AMOUNTS:
            if len(self.running[name]) < CONCURRENCY:
                probe = Reservation(
                    id=f"probe{next(numbers)}",
                    organisation=self.organisation,
                    scopes=(self.scope(name),),
                    cost=Cost(prompt_tokens=0),
                )
                decision = self.do(partial(self.store.reserve, probe))
                if isinstance(decision, Lease):
                    self.do(partial(self.store.release, decision))
                # Settling may take more than there is; the debt is paid before another request is let in.
                assert decision.limit_statuses[0].remaining == max(0, AMOUNTS[name] - self.taken[name])


@pytest.mark.parametrize("kind", ["local", "redis", "redis, one record"])
def test_quotas_keep_exact_accounts(kind, valkey):
    with asyncio.Runner() as runner:

        async def open_scripts() -> ScriptCaller:
            return ScriptCaller(valkey.url)

        scripts = runner.run(open_scripts())

        def new_store() -> QuotaStore:
            if kind == "local":
                return LocalQuotaStore(time.monotonic)
            return RedisQuotaStore(scripts, timeout_seconds=10.0)

        members = {"new_store": staticmethod(new_store), "runner": runner, "one_record": "record" in kind}
        run_state_machine_as_test(
            type("Machine", (QuotaMachine,), members),
            settings=settings(
                max_examples=60 if kind == "local" else 20,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        runner.run(scripts.close())


def test_several_processes_never_sell_too_much(redis_url):
    """Random traffic on three of them; the sum of what they granted stays within the limits at every moment."""

    async def play(seed: int) -> None:
        chance = random.Random(seed)
        scripts = [ScriptCaller(redis_url) for _ in range(3)]
        stores = [RedisQuotaStore(s, timeout_seconds=10.0) for s in scripts]
        limit = Limit(unit="total_tokens", amount=20_000, window=Window(seconds=LONG))
        scope = Scope(name="s", limits=(limit, concurrency(60)))
        organisation, used, running = f"several{next(numbers)}", 0, {}
        granted = 0

        async def one(number: int) -> None:
            nonlocal used, granted
            await asyncio.sleep(chance.random())
            store, tokens = chance.choice(stores), chance.randint(1, 200)
            reservation = Reservation(
                id=f"r{seed}-{number}",
                organisation=organisation,
                scopes=(scope,),
                cost=Cost(prompt_tokens=tokens),
            )
            decision = await store.reserve(reservation)
            if isinstance(decision, Refusal):
                return
            granted += 1
            used, running[number] = used + tokens, tokens
            assert used <= 20_000
            assert len(running) <= 60
            await asyncio.sleep(chance.random() / 50)
            actual = chance.randint(0, tokens)
            used += actual - running.pop(number)
            await store.settle(decision, Cost(prompt_tokens=actual))

        await asyncio.gather(*(one(number) for number in range(600)))
        assert granted > 40
        probe = Reservation(
            id=f"probe{seed}", organisation=organisation, scopes=(scope,), cost=Cost(prompt_tokens=0)
        )
        last = await RedisQuotaStore(scripts[0], timeout_seconds=10.0).reserve(probe)
        assert last.limit_statuses[0].remaining == 20_000 - used
        for each in scripts:
            await each.close()

    for seed in range(4):
        asyncio.run(play(seed))


@given(
    steps=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 12)), max_size=60),
    amount=st.integers(5, 12),
    period=st.sampled_from([1.0, 10.0, 60.0]),
)
def test_no_window_of_time_gets_more_than_a_full_bucket_and_its_refill(steps, amount, period):
    clock = FakeClock()
    store = LocalQuotaStore(clock)
    limits = (Limit(unit="total_tokens", amount=amount, window=Window(seconds=period)),)
    granted: list[tuple[float, int]] = []

    async def play() -> None:
        for pause, tokens in steps:
            clock.advance(pause)
            reservation = Reservation(
                id=f"r{next(numbers)}",
                organisation="o",
                scopes=(Scope(name="s", limits=limits),),
                cost=Cost(prompt_tokens=tokens),
            )
            if isinstance(await store.reserve(reservation), Lease):
                granted.append((clock.now, tokens))

    asyncio.run(play())
    for first, (start, _) in enumerate(granted):
        for last in range(first, len(granted)):
            window = granted[last][0] - start
            within = sum(tokens for _, tokens in granted[first : last + 1])
            assert within <= amount + window * amount / period + 1e-3
