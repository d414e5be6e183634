"""Windows of limits: both stores decide alike, and fixed windows add up to what was used in them."""

import asyncio
import itertools
from collections import defaultdict
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test

from gateway.quotas import local_store, redis_store
from gateway.quotas.limit import Limit, Scope, concurrency
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.quota_store import Cost, Lease, Refusal, Reservation
from policies.admission.limit_windows import Window, calendar_end
from radix_cache.redis.call import read_lua
from radix_cache.redis.library import library_functions
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.clock import FakeClock
from tests.fakes.timed_quota_store import TimedQuotaStore

EVE = datetime(2026, 12, 31, 23, 0, tzinfo=UTC).timestamp()
DAY, ROLLING = Window.of("day", "calendar"), Window.of("hour", "rolling")
LIMITS = (
    Limit(unit="total_tokens", amount=60, window=DAY),
    Limit(unit="output_tokens", amount=50, window=ROLLING),
    Limit(unit="input_tokens", amount=45, window=Window.of("minute")),
    Limit(unit="requests", amount=12, window=Window.of("hour")),
    Limit(unit="cached_tokens", amount=20, window=Window.of("hour"), mode="soft"),
    Limit(unit="spend", amount=30, window=Window.of("week", "calendar"), mode="shadow"),
    concurrency(4),
)
SCOPES = (Scope(name="organisation:o", limits=LIMITS[:2]), Scope(name="tenant:t", limits=LIMITS))

numbers = itertools.count()


def cost(tokens, output, cached=0):
    return Cost(prompt_tokens=tokens, cached_tokens=cached, output_tokens=output, spend=tokens + output)


class WindowMachine(RuleBasedStateMachine):
    """Two stores, one clock; and a plain model: what was used by window of its reservation."""

    leases = Bundle("leases")
    runner: asyncio.Runner
    scripts: ScriptCaller
    client: "redis.Redis"

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.clock.now = EVE
        self.local = LocalQuotaStore(self.clock, self.clock)
        self.shared = TimedQuotaStore(self.scripts, self.client, self.clock)
        self.organisation = f"windows{next(numbers)}"
        self.used: dict[float, int] = defaultdict(int)

    def do(self, work):
        async def wait():
            return await work()

        return type(self).runner.run(wait())

    def day(self):
        return calendar_end("day", self.clock.now)

    @rule(seconds=st.sampled_from([1, 20, 59, 60, 61, 1799, 1800, 3600, 90_000]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.shared.tell_time()

    @rule(target=leases, tokens=st.integers(0, 30), output=st.integers(0, 30))
    def reserve(self, tokens, output):
        reservation = Reservation(
            id=f"r{next(numbers)}",
            organisation=self.organisation,
            scopes=SCOPES,
            cost=cost(tokens, output, None),
        )
        here = self.do(lambda: self.local.reserve(reservation))
        there = self.do(lambda: self.shared.reserve(reservation))
        assert type(here) is type(there)
        assert [s.remaining for s in here.limit_statuses] == [s.remaining for s in there.limit_statuses]
        if isinstance(here, Refusal):
            assert (here.scope, here.limit) == (there.scope, there.limit)
            return None
        assert [s.limit for s in here.shadow_refusals] == [s.limit for s in there.shadow_refusals]
        self.used[self.day()] += tokens + output
        assert self.used[self.day()] <= 60
        return reservation, self.day(), tokens + output

    @rule(
        lease=consumes(leases),
        tokens=st.integers(0, 30),
        output=st.integers(0, 40),
        cached=st.integers(0, 30),
        settles=st.booleans(),
    )
    def end(self, lease, tokens, output, cached, settles):
        if lease is None:
            return
        reservation, day, reserved = lease
        held = Lease(reservation=reservation)
        actual = cost(tokens, output, min(cached, tokens))
        for store in (self.local, self.shared):
            self.do(lambda: store.settle(held, actual) if settles else store.release(held))  # noqa: B023
        self.used[day] += (tokens + output if settles else 0) - reserved

    @rule()
    def look(self):
        probe = Reservation(
            id=f"probe{next(numbers)}",
            organisation=self.organisation,
            scopes=(Scope(name="organisation:o", limits=LIMITS[:1]),),
            cost=Cost(prompt_tokens=0),
        )
        for store in (self.local, self.shared):
            seen = self.do(lambda: store.reserve(probe))  # noqa: B023
            assert seen.limit_statuses[0].remaining == max(0, 60 - self.used[self.day()])


def test_both_stores_keep_the_same_windows_and_budgets_add_up_across_resets(valkey):
    with (
        asyncio.Runner() as runner,
        redis.Redis(unix_socket_path=str(valkey.socket)) as client,
        patch.object(local_store, "LEASE_SECONDS", 1e9),
        patch.object(redis_store, "LEASE_MS", 10**12),
    ):

        async def open_scripts():
            return ScriptCaller(valkey.url)

        scripts = runner.run(open_scripts())
        parts = {"runner": runner, "scripts": scripts, "client": client}
        run_state_machine_as_test(
            type("Machine", (WindowMachine,), parts),
            settings=settings(
                max_examples=25,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        runner.run(scripts.close())


def test_the_server_computes_windows_of_the_calendar(valkey):
    end = "\nverbs.calendar_end = function(keys, args) return calendar_end(args[1], tonumber(args[2])) end"
    script = library_functions(read_lua("gateway.quotas", "calendar", "windows") + end, ["calendar_end"])[
        "calendar_end"
    ]
    with asyncio.Runner() as runner:

        async def open_scripts():
            return ScriptCaller(valkey.url)

        scripts = runner.run(open_scripts())

        @given(
            period=st.sampled_from(["minute", "hour", "day", "week", "month"]),
            second=st.integers(0, 2**32),
        )
        @settings(max_examples=150, deadline=None)
        def check(period, second):
            async def ask():
                return await scripts.call(script, [], [period, second * 1_000_000])

            assert runner.run(ask()) == round(calendar_end(period, second) * 1e6)

        check()
        runner.run(scripts.close())


@pytest.mark.parametrize("kind", ["local", "redis"])
async def test_a_refund_after_the_bucket_has_emptied_takes_nothing_from_what_others_have_used(kind, valkey):
    clock, scripts = FakeClock(), ScriptCaller(valkey.url)
    clock.now = EVE
    with redis.Redis(unix_socket_path=str(valkey.socket)) as client:
        store = TimedQuotaStore(scripts, client, clock) if kind == "redis" else LocalQuotaStore(clock, clock)
        limit = Limit(unit="total_tokens", amount=60, window=Window.of("minute"))
        scope = Scope(name="tenant:t", limits=(limit,))

        async def ask(name, tokens):
            cost = Cost(prompt_tokens=tokens)
            return await store.reserve(
                Reservation(id=f"{name}-{kind}", organisation="late", scopes=(scope,), cost=cost)
            )

        early = await ask("early", 60)
        clock.advance(50)
        if isinstance(store, TimedQuotaStore):
            store.tell_time()
        await ask("other", 40)
        await store.settle(early, Cost(prompt_tokens=0))
        assert (await ask("probe", 0)).limit_statuses[0].remaining == 20
    await scripts.close()
