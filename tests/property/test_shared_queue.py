"""The shared queue in Redis against a plain model: the same turns under any interleaving, lost gateways and repeats
included; never over the window, no request kept waiting that could go, no ticket lost."""

import asyncio
import itertools
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from gateway.queueing.shared.keys import BATCH, QueueKeys
from gateway.queueing.shared.queue_messages import SharedPlacement, SharedRoute, SharedTicket, TenantCharge
from gateway.queueing.shared.queue_store import NotJoined, QueueStore
from policies.admission.filled_workers import FilledWorkers
from policies.admission.search_bounds import PASSED_OVER_MAX
from policies.cell_turns import TurnBounds
from policies.others_load import NO_TOTALS, LoadTotals
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.fixed_window import FixedWindow
from tests.fakes.queue_model import GrantRound, QueueModel

WINDOW = 100
FILLED = FilledWorkers(last_open="w0", tokens=WINDOW, patient_seconds=0.5)
FILLED_BY_TENANTS = FilledWorkers(last_open="w0", tokens=WINDOW, patient_seconds=inf, open_tokens=20)
WINDOWS = (
    FixedWindow(WINDOW),
    FixedWindow(60, WINDOW),
    FixedWindow(60, WINDOW, contended=False),
    FixedWindow(60, WINDOW, 30),
    FixedWindow(60, WINDOW, 30, counts_own=False),
    FixedWindow(40, 60, 20, contended=False, filled=FILLED),
    FixedWindow(40, 60, 20, filled=FILLED),
    FixedWindow(40, 60, 20, counts_own=False, filled=FILLED_BY_TENANTS),
    FixedWindow(60, 60, contended=False, counts_own=False, filled=FILLED_BY_TENANTS),
    FixedWindow(60, WINDOW, passed_over_max=2),
)
LEASE_MS, LATER_MS = 10_000_000, 100_000_000
GATEWAYS = tuple(f"{number:016x}" for number in range(3))
WORKERS, TENANTS, QUEUES = ("w0", "w1", "w2"), ("a", "b", "c"), ("m", "n", "m#batch")
CROWD = PASSED_OVER_MAX + 2
REPLY_SECONDS_MAX = 60.0
"""How long a call to Redis may take, so that a lost reply fails the test by name."""
LOOKS_MAX = 1000
"""Looks after which every request has gone that could go; there are never so many requests."""
BEFORE = ("m", "n")
"""The queues that go before batch work."""

runs = itertools.count()
elsewhere = st.builds(LoadTotals, st.integers(0, 150), st.integers(1, 3), st.integers(0, 30))
reported = st.one_of(
    st.just(NO_TOTALS), st.builds(LoadTotals, st.integers(0, 150), st.integers(1, 3), st.integers(0, 30))
)
charges = st.builds(
    TenantCharge,
    st.sampled_from(QUEUES),
    st.sampled_from(TENANTS),
    st.sampled_from([0.0, 10.0, 500.0]),
    st.sampled_from([0.0, -20.0, 30.0]),
)
turn_bounds = st.builds(TurnBounds, st.floats(0, 2000), st.sampled_from([0.0, 300.0, 1500.0, inf]))

gateway = st.sampled_from(GATEWAYS)
routes = st.lists(
    st.builds(
        SharedRoute,
        st.sampled_from(WORKERS),
        st.integers(1, 150),
        st.floats(0, 40),
        st.sampled_from([0.0, 0.1]),
        slots=st.sampled_from([0, 1, 4]),
        queued_tokens=st.sampled_from([0, 60, 150]),
        computed_tokens=st.sampled_from([0, 40, 120]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda route: route.worker,
)


class QueueMachine(RuleBasedStateMachine):
    run: Callable[[Any], Any]
    scripts: ScriptCaller

    @initialize(hold=st.sampled_from([None, 0.1, 1.0]), window=st.sampled_from(WINDOWS))
    def begin(self, hold, window):
        prefix = f"queue{next(runs)}"
        self.stores = {
            name: QueueStore(self.scripts, QueueKeys(prefix), name, window, hold) for name in GATEWAYS
        }
        self.model = QueueModel(window.window, hold)
        self.tickets: dict[str, SharedTicket] = {}
        self.said: list[Callable[[], None]] = []
        self.gone: set[str] = set()
        self.batch_may_go = True
        for name in GATEWAYS:
            self.joined(name, [], [])

    def do(self, call):
        """What Redis says; -2 for a gateway that it does not know."""
        try:
            return type(self).run(call)
        except NotJoined:
            return None

    def finished(self, name, queues=QUEUES):
        """A verb gives at most so many turns; its caller asks for the rest at once."""
        self.batch_may_go = len(queues) == len(QUEUES)
        while self.model.more:
            # No turn is taken back for being claimed late, however slow the machine is: the model has no clock.
            told = self.do(self.stores[name].expire(queues, ahead_ms=-LATER_MS))
            assert told is not None
            assert told.due_seconds is not None
            self.model.expire(name, queues, everything=False)

    def known(self):
        return sorted(self.tickets)

    @rule(
        name=gateway,
        tenant=st.sampled_from(TENANTS),
        queue=st.sampled_from(QUEUES),
        cost=st.floats(1, 500),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        due_in=st.sampled_from([0.2, 0.5]),
        work_share=st.sampled_from([0.0, 0.3, 0.6]),
        routes=routes,
    )
    def admit(self, name, tenant, queue, cost, weight, due_in, work_share, routes):
        self.asks(name, tenant, queue, cost, weight, routes, due_in, work_share=work_share)

    @rule(
        name=gateway, queue=st.sampled_from(QUEUES), routes=st.lists(routes, min_size=CROWD, max_size=CROWD)
    )
    def crowd(self, name, queue, routes):
        """More tenants than are looked at, one after another."""
        for at, each in enumerate(routes):
            self.asks(name, f"t{at}", queue, 10.0, 1.0, each)

    def asks(self, name, tenant, queue, cost, weight, routes, due_in=0.0, *, work_share=0.0):
        id = f"{name}:{len(self.tickets)}"
        self.tickets[id] = SharedTicket(
            id=id,
            queue=queue,
            tenant=tenant,
            weight=weight,
            cost=cost,
            kv_tokens=10,
            target_seconds=due_in,
            work_share=work_share,
        )
        self.admitted(name, id, routes)

    @rule(name=gateway, queue=st.sampled_from(BEFORE), routes=routes, times=st.integers(1, 2))
    def spare(self, name, queue, routes, times):
        """A placement for a request that has one already."""
        id = f"{name}:{len(self.tickets)}"
        self.tickets[id] = SharedTicket(id=id, queue=queue, tenant="a", weight=1.0, cost=0.0, kv_tokens=10)
        queues = [queue, *(other for other in QUEUES if other != queue)]
        for _ in range(times):
            told = self.do(self.stores[name].spare(self.tickets[id], queues, routes))
            expected = self.model.spare(name, self.tickets[id], queues, routes)
            assert expected == (-2, "") if told is None else (told.outcome, told.worker or "") == expected

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), routes=routes)
    def admit_again(self, data, routes):
        """A repeat, or other routes for one that waits, or much too late."""
        id = data.draw(st.sampled_from(self.known()))
        self.admitted(id.split(":")[0], id, routes)

    def admitted(self, name, id, routes):
        before = BEFORE if self.tickets[id].queue.endswith(BATCH) else ()
        told = self.do(self.stores[name].admit(self.tickets[id], routes, before))
        expected = self.model.admit(name, self.tickets[id], routes, before)
        assert expected == (-2, "") if told is None else (told.outcome, told.worker or "") == expected
        if told is not None:
            self.finished(name, [self.tickets[id].queue, *before])
        self.batch_may_go = False  # who stood before it may be gone; the next verb that names all sees that

    @precondition(lambda self: self.model.turns)
    @rule(data=st.data(), routes=routes, as_given=st.booleans(), for_another=st.booleans())
    def claim(self, data, routes, as_given, for_another):
        id = data.draw(st.sampled_from(sorted(set(self.model.turns))))
        record = self.model.records.get(id)
        if as_given and record is not None and record.state == "granted":
            routes = [SharedRoute(record.worker, record.tokens, 1.0)]
        name, queue = id.split(":")[0], self.tickets[id].queue
        mine = [other for other in self.model.waiting(queue) if other.startswith(name)]
        other = data.draw(st.sampled_from(mine)) if for_another and mine else None
        told = self.do(self.stores[name].claim(QUEUES, id, other, routes))
        expected = self.model.claim(name, QUEUES, id, other, routes)
        if told is None:
            assert expected == (-2, "", "")
        else:
            assert (told.outcome, told.id, told.worker or "") == expected
            self.finished(name)

    @precondition(lambda self: self.tickets)
    @rule(
        data=st.data(),
        first=st.booleans(),
        urgent=st.booleans(),
        change=st.floats(-300, 300),
        times=st.integers(1, 2),
    )
    def release(self, data, first, urgent, change, times):
        id = data.draw(st.sampled_from(self.known()))
        name, queue = id.split(":")[0], self.tickets[id].queue
        queues = [queue, *(other for other in QUEUES if other != queue)]
        for _ in range(times):
            store = self.stores[name]
            call = store.first_token(queues, id, urgent=urgent) if first else store.end(queues, id, change)
            told = self.do(call)
            expected = self.model.release(name, queues, id, "first" if first else "end", change)
            assert expected == (-2 if told is None else told.outcome)
            if told is not None:
                self.finished(name, queues)

    @rule(
        name=gateway,
        sums=st.dictionaries(st.sampled_from(WORKERS), reported),
        charges=st.lists(charges, max_size=3),
        times=st.integers(1, 2),
    )
    def report(self, name, sums, charges, times):
        """What a gateway placed by itself."""
        id = f"report{next(runs)}"
        for number in range(times):
            told = self.do(lambda: self.stores[name].report(QUEUES, id, sums, charges))
            # The same call once more charges no tenant.
            expected = self.model.report(name, QUEUES, sums, charges if number == 0 else [])
            if told is None:
                assert expected is None
            else:
                assert told.waiting == expected[0]
                if number == 0:
                    flat = [tag for tags in told.tags for tag in tags]
                    assert flat == pytest.approx([tag for tags in expected[1] for tag in tags])
                self.finished(name)

    @rule(name=gateway, everything=st.booleans())
    def expire(self, name, everything):
        told = self.do(self.stores[name].expire(QUEUES, ahead_ms=LATER_MS if everything else -LATER_MS))
        assert self.model.expire(name, QUEUES, everything) == (-2 if told is None else told.outcome)
        if told is not None:
            self.finished(name)

    @rule(
        name=gateway,
        others=st.dictionaries(st.sampled_from(WORKERS), elsewhere),
        bounds=st.dictionaries(st.sampled_from(QUEUES), turn_bounds),
    )
    def other_cells(self, name, others, bounds):
        """Other cells use the same workers, and have come so far with their turns."""
        told = self.do(self.stores[name].cells(QUEUES, others, bounds, LATER_MS))
        expected = self.model.cells(name, QUEUES, others, bounds)
        assert expected == (told if told is None else told[1])
        if told is not None:
            self.finished(name)

    @rule(name=gateway, dead=gateway)
    def reap(self, name, dead):
        """Its lease runs on until it is looked at from far in the future."""
        if name == dead:
            return
        if name in self.model.gateways and dead in self.model.gateways:
            assert self.do(self.stores[name].reap(QUEUES, dead)).outcome == 0
        told = self.do(self.stores[name].reap(QUEUES, dead, ahead_ms=LATER_MS))
        assert self.model.reap(name, QUEUES, dead) == (-2 if told is None else told.outcome)
        if told is not None:
            self.finished(name)

    @rule(
        name=gateway, data=st.data(), units=st.lists(st.floats(0, 300), max_size=2), times=st.integers(1, 2)
    )
    def join(self, name, data, units, times):
        """Again, with a part of what it holds, and with what it gave while Redis was away."""
        places = [
            SharedPlacement(
                ticket=record.ticket,
                worker=record.worker,
                uncached_tokens=record.tokens if record.state == "placed" else 0,
            )
            for id, record in self.model.records.items()
            if id.startswith(f"{name}:") and record.state in ("placed", "answering")
        ]
        kept = [place for place in places if data.draw(st.booleans())]
        self.joined(
            name, kept, [("m", tenant, given) for tenant, given in zip(TENANTS, units, strict=False)], times
        )

    def joined(self, name, places, services, times=1):
        id = f"join{next(runs)}"
        for number in range(times):
            self.do(lambda: self.stores[name].join(QUEUES, LEASE_MS, id, places, services))
            # The same call once more counts no service.
            self.model.join(name, QUEUES, places, services if number == 0 else [])
        self.finished(name)

    @invariant()
    def redis_stands_as_the_model_does(self):
        some = sorted(self.model.gateways)
        if not some:
            return
        told = self.do(self.stores[some[0]].beat(QUEUES, LEASE_MS))
        assert told.gateways == len(some)
        for worker in WORKERS:
            load = told.loads.get(worker)
            assert (load or NO_TOTALS) == self.model.load(worker)

    @invariant()
    def the_same_turns_were_told(self):
        if self.model.gateways:
            entries = type(self).run(
                lambda: self.scripts.ask("XRANGE", self.stores[GATEWAYS[0]].keys.turns, "-", "+")
            )
            turns = [fields[1].decode() for _, fields in entries if fields[0] == b"turn"]
            assert turns == self.model.turns

    @invariant()
    def no_worker_has_more_than_its_window(self):
        for worker in WORKERS:
            inside = [
                r
                for r in self.model.records.values()
                if r.worker == worker and r.state in ("granted", "placed")
            ]
            beyond = 0 if self.model.window.counts_own else max((r.tokens for r in inside), default=0)
            assert len(inside) <= 1 or sum(r.tokens for r in inside) <= WINDOW + beyond

    @invariant()
    def no_request_waits_that_could_go(self):
        """At the latest when it is looked at again: another queue's turn may have made a worker dearer, so that a
        request that waited for it no longer does."""
        if not self.model.gateways:
            return
        if self.model.hold is not None:
            self.batch_may_go, some = True, min(self.model.gateways)
            for _ in range(LOOKS_MAX):
                if not self.some_request_may_go():
                    break
                assert self.do(self.stores[some].expire(QUEUES, ahead_ms=-LATER_MS)) is not None
                self.model.expire(some, QUEUES, everything=False)
        assert not self.some_request_may_go()

    def some_request_may_go(self):
        return any(
            self.model.next(queue, GrantRound(), remembers=False) is not None
            for queue in QUEUES
            if not self.model.behind(queue, QUEUES) and (self.batch_may_go or not queue.endswith(BATCH))
        )


@pytest.fixture
def machine(valkey):
    """The machine, with scripts in a Redis."""
    with asyncio.Runner() as runner:

        async def open_scripts():
            return ScriptCaller(valkey.url)

        def run(call):
            async def wait():
                async with asyncio.timeout(REPLY_SECONDS_MAX):
                    return await (call() if callable(call) else call)

            return runner.run(wait())

        scripts = runner.run(open_scripts())
        yield type("Machine", (QueueMachine,), {"run": staticmethod(run), "scripts": scripts})
        runner.run(scripts.close())


def test_redis_and_the_model_give_the_same_turns(machine):
    run_machine(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("queue", ["m", "m#batch"])
@pytest.mark.parametrize(("slots", "goes"), [(0, None), (1, "w1")])
def test_redis_sends_a_patient_request_to_a_dear_filled_worker_if_the_open_one_has_no_slot(
    machine, queue, slots, goes
):
    steps = machine()
    steps.begin(hold=0.0, window=FixedWindow(40, 60, 20, contended=False, filled=FILLED))
    cheap = SharedRoute("w0", 30, 1.0, 0.1, slots=slots)
    steps.asks(GATEWAYS[0], "a", "m", 10.0, 1.0, [cheap], 0.2)
    steps.asks(GATEWAYS[0], "a", queue, 10.0, 1.0, [cheap, SharedRoute("w1", 30, 100.0, 0.1)], 0.5)
    record = list(steps.model.records.values())[-1]
    assert (record.worker if record.state != "waiting" else None) == goes
