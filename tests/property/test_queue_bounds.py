"""The bound of each queue policy, in the form in which it runs: a window of requests with the workers, costs that
are estimates until they are corrected, a clock that a test moves."""

import random
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.queueing.protocol import QueueCounters, Ticket
from policies.registry import queue_policy, tenant_order

COST_MAX = 1000.0

few = settings(max_examples=30, deadline=None)


class Server:
    """Serves `window` requests at one time, in the policy's order; each is corrected when it ends.

    `given`: work over weight as it stands in the books (estimate, then actual). `ended`: of those that ended.
    """

    def __init__(self, policy, window, seed, weights, *, exact=False):
        self.policy = policy
        self.window = window
        self.chance = random.Random(seed)
        self.weights = weights
        self.exact = exact
        self.counters = QueueCounters()
        self.waiting: list[Ticket] = []
        self.inside: list[tuple[Ticket, float]] = []
        self.given = dict.fromkeys(weights, 0.0)
        self.ended = dict.fromkeys(weights, 0.0)
        self.number = 0

    def arrive(self, tenant):
        cost = self.chance.uniform(1.0, COST_MAX)
        ticket = Ticket(
            number=self.number,
            tenant=tenant,
            cost=cost,
            arrived_at=float(self.number),
            weight=self.weights[tenant],
            cached_tokens=self.chance.choice([0, 10, 500]),
        )
        self.number += 1
        self.counters = self.policy.arrive(self.counters, ticket, self.waiting)
        self.waiting.append(ticket)

    def keep_busy(self, tenants):
        """None of these tenants runs out of tickets."""
        waiting = Counter(ticket.tenant for ticket in self.waiting)
        for tenant in tenants:
            for _ in range(3 - waiting[tenant]):
                self.arrive(tenant)

    def step(self):
        """Give one turn; where the window is full, end a request first."""
        if len(self.inside) == self.window:
            ticket, actual = self.inside.pop(self.chance.randrange(len(self.inside)))
            self.counters = self.policy.correct(self.counters, ticket, actual - ticket.cost)
            self.given[ticket.tenant] += (actual - ticket.cost) / ticket.weight
            self.ended[ticket.tenant] += actual / ticket.weight
        turn = self.policy.next(self.counters, self.waiting, 0.0)
        self.waiting.remove(turn.ticket)
        self.counters = turn.counters
        actual = turn.ticket.cost if self.exact else self.chance.uniform(1.0, COST_MAX)
        self.inside.append((turn.ticket, actual))
        self.given[turn.ticket.tenant] += turn.ticket.cost / turn.ticket.weight

    def apart(self, books):
        return abs(books["a"] - books["b"])


cases = {
    "seed": st.integers(0, 10**6),
    "window": st.integers(1, 8),
    "a": st.floats(0.2, 5),
    "b": st.floats(0.2, 5),
    "third": st.booleans(),
}


def played(policy, seed, window, weights, third, *, exact, look):
    """60 turns of two tenants that always wait, and perhaps a third that comes and goes."""
    server = Server(policy, window, seed, weights, exact=exact)
    for _ in range(60):
        server.keep_busy("ab")
        if third and server.chance.random() < 0.2:
            server.arrive("c")
        server.step()
        look(server)


@few
@given(**cases)
def test_sfq_gives_work_out_within_one_request_of_each_share(seed, window, a, b, third):
    def look(server):
        assert server.apart(server.given) <= COST_MAX / a + COST_MAX / b + 1e-6

    played(queue_policy("sfq"), seed, window, {"a": a, "b": b, "c": 1.0}, third, exact=True, look=look)


@few
@given(**cases)
def test_sfq_gives_work_within_the_window_of_each_share(seed, window, a, b, third):
    def look(server):
        bound = (window + 1) * (COST_MAX / a + COST_MAX / b) + 1e-6
        assert server.apart(server.ended) <= bound
        assert server.apart(server.given) <= bound

    played(queue_policy("sfq"), seed, window, {"a": a, "b": b, "c": 1.0}, third, exact=False, look=look)


@few
@given(**cases)
def test_vtc_keeps_two_waiting_tenants_within_twice_the_largest_and_the_window(seed, window, a, b, third):
    largest = COST_MAX / min(a, b)

    def look(server):
        assert server.apart(server.ended) <= 2 * largest + window * largest + 1e-6

    played(queue_policy("vtc"), seed, window, {"a": a, "b": b, "c": 1.0}, third, exact=False, look=look)


@few
@given(quantum=st.floats(50, 5000), **cases)
def test_dlpm_keeps_two_waiting_tenants_within_largest_and_quantum_and_the_window(
    seed, window, a, b, third, quantum
):
    largest = COST_MAX / min(a, b)

    def look(server):
        assert server.apart(server.ended) <= 2 * (largest + quantum) + window * largest + 1e-6

    played(
        queue_policy("dlpm", {"quantum": quantum}),
        *(seed, window, {"a": a, "b": b, "c": 1.0}, third),
        exact=False,
        look=look,
    )


def test_dlpm_prefers_the_longest_prefix_of_the_tenants_that_can_pay():
    policy = queue_policy("dlpm", {"quantum": 100})
    waiting = [
        Ticket(number=at, tenant=tenant, cost=60, arrived_at=0, cached_tokens=cached)
        for at, (tenant, cached) in enumerate([("a", 10), ("b", 0), ("a", 90), ("a", 50), ("a", 40)])
    ]
    counters, order = QueueCounters(), []
    while waiting:
        turn = policy.next(counters, waiting, 0.0)
        counters = turn.counters
        waiting.remove(turn.ticket)
        order.append(turn.ticket.number)
    # Two of a's are paid by the first quantum; then it is b's turn; then a is refilled.
    assert order == [2, 3, 1, 4, 0]


def test_dlpm_per_worker_keeps_an_account_for_each_worker():
    policy = queue_policy("dlpm", {"quantum": 100, "per_worker": True})
    ticket = Ticket(number=0, tenant="a", cost=60, arrived_at=0, worker="w1")
    assert dict(policy.next(QueueCounters(), [ticket], 0.0).counters.tags) == {"a@w1": 40.0}


@pytest.mark.parametrize("name", ["sfq", "vtc"])
@few
@given(idle_turns=st.integers(1, 100), seed=st.integers(0, 10**6))
def test_a_tenant_that_was_idle_comes_back_without_credit(name, idle_turns, seed):
    """It gets its share from now on, and nothing for the time before."""
    server = Server(queue_policy(name), 1, seed, {"a": 1.0, "b": 1.0}, exact=True)
    for _ in range(idle_turns):
        server.keep_busy("a")
        server.step()
    before = dict(server.given)
    for _ in range(40):
        server.keep_busy("ab")
        server.step()
        since = {tenant: server.given[tenant] - before[tenant] for tenant in "ab"}
        assert server.apart(since) <= 3 * COST_MAX


@few
@given(
    seed=st.integers(0, 10**6),
    shares=st.sampled_from([{"batch": 0.3}, {"chat": 0.5, "batch": 0.5}, {"voice": 0.1, "batch": 0.6}]),
)
def test_a_class_that_waits_gets_its_reserved_share(seed, shares):
    policy = queue_policy("priority", {"reserved": shares, "ageing_seconds": 1e9})
    chance = random.Random(seed)
    counters, waiting, work = QueueCounters(), [], Counter()
    for number in range(80):
        for name in ("voice", "chat", "batch"):
            while sum(ticket.service_class == name for ticket in waiting) < 2:
                ticket = Ticket(
                    number=number,
                    tenant=chance.choice("ab"),
                    cost=chance.uniform(1, COST_MAX),
                    arrived_at=0.0,
                    service_class=name,
                )
                counters = policy.arrive(counters, ticket, waiting)
                waiting.append(ticket)
        turn = policy.next(counters, waiting, 0.0)
        counters = turn.counters
        waiting.remove(turn.ticket)
        work[turn.ticket.service_class] += turn.ticket.cost
        for name, share in shares.items():
            assert share * work.total() - work[name] <= len(shares) * COST_MAX + 1e-6


@few
@given(seed=st.integers(0, 10**6), ageing=st.floats(0.5, 20))
def test_no_request_is_passed_over_for_longer_than_ageing_lets(seed, ageing):
    policy = queue_policy("priority", {"reserved": {}, "ageing_seconds": ageing})
    chance = random.Random(seed)
    counters, waiting, now = QueueCounters(), [], 0.0
    for number in range(60):
        now += chance.uniform(0, 2)
        ticket = Ticket(
            number=number,
            tenant="a",
            cost=1.0,
            arrived_at=now,
            service_class=chance.choice(["voice", "code", "chat", "batch"]),
        )
        counters = policy.arrive(counters, ticket, waiting)
        waiting.append(ticket)
        if chance.random() < 0.7:
            turn = policy.next(counters, waiting, now)
            counters = turn.counters
            waiting.remove(turn.ticket)
            passed = [other for other in waiting if other.number < turn.ticket.number]
            assert all(now - other.arrived_at <= 3 * ageing + 1e-9 for other in passed)


def test_voice_goes_before_batch_and_tenants_of_a_class_take_turns():
    policy = queue_policy("priority", {"reserved": {}})
    waiting = [
        Ticket(number=at, tenant=tenant, cost=10, arrived_at=0, service_class=name)
        for at, (tenant, name) in enumerate(
            [("a", "batch"), ("a", "chat"), ("a", "chat"), ("b", "chat"), ("c", "voice")]
        )
    ]
    counters, order = QueueCounters(), []
    while waiting:
        turn = policy.next(counters, waiting, 0.0)
        counters = turn.counters
        waiting.remove(turn.ticket)
        order.append(turn.ticket.number)
    assert order == [4, 1, 3, 2, 0]


jobs = st.lists(st.floats(0, 10), min_size=1, max_size=5)


def _served(waiting, order):
    """When each ticket ends if each takes one second, in this order."""
    left, now, ends = list(waiting), 0.0, {}
    while left:
        ticket = order.first(left, now)
        left.remove(ticket)
        now += 1.0
        ends[ticket.number] = now
    return ends


@few
@given(deadlines=jobs)
def test_edf_meets_all_deadlines_if_any_order_does(deadlines):
    waiting = [
        Ticket(number=at, tenant="a", cost=1, arrived_at=0, deadline=deadline)
        for at, deadline in enumerate(deadlines)
    ]
    possible = any(
        all(place + 1 <= deadline for place, deadline in enumerate(order))
        for order in permutations(deadlines)
    )
    ends = _served(waiting, tenant_order("edf"))
    assert all(ends[t.number] <= t.deadline for t in waiting) == possible


def test_edf_does_not_let_a_late_request_make_others_late():
    late = Ticket(number=0, tenant="a", cost=1, arrived_at=0, deadline=1.0)
    in_time = Ticket(number=1, tenant="a", cost=1, arrived_at=0, deadline=9.0)
    whenever = Ticket(number=2, tenant="a", cost=1, arrived_at=0)
    assert tenant_order("edf").first([late, in_time, whenever], 5.0) is in_time
    assert tenant_order("edf").first([late, whenever], 5.0) is whenever


@few
@given(
    sizes=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5000)), min_size=2, max_size=8),
    now=st.floats(10, 100),
)
def test_hrrn_is_overtaken_only_in_proportion_to_size(sizes, now):
    waiting = [
        Ticket(number=at, tenant="a", cost=1, arrived_at=arrived, uncached_tokens=tokens)
        for at, (arrived, tokens) in enumerate(sizes)
    ]
    first = tenant_order("hrrn").first(waiting, now)
    for other in waiting:
        waited = (now - other.arrived_at) * first.uncached_tokens / other.uncached_tokens
        assert now - first.arrived_at >= waited - 1e-6


def test_hrrn_lets_short_ones_go_first_until_the_long_one_has_waited():
    long = Ticket(number=0, tenant="a", cost=1, arrived_at=0.0, uncached_tokens=10_000)
    for at, goes in ((1.0, 100), (200.0, 10_000)):
        short = Ticket(number=1, tenant="a", cost=1, arrived_at=at - 0.5, uncached_tokens=100)
        assert tenant_order("hrrn").first([long, short], at).uncached_tokens == goes


@few
@given(cached=st.lists(st.integers(0, 1000), min_size=1, max_size=20), seed=st.integers(0, 1000))
def test_longest_prefix_passes_no_request_over_for_long(cached, seed):
    """One more arrives for each that goes, once a second: none waits longer than patience and those before it."""
    chance, order = random.Random(seed), tenant_order("longest_prefix")
    waiting = [
        Ticket(number=at, tenant="a", cost=1, arrived_at=0.0, cached_tokens=tokens)
        for at, tokens in enumerate(cached)
    ]
    for number in range(len(cached), 100):
        now = float(number - len(cached))
        waiting.append(
            Ticket(number=number, tenant="a", cost=1, arrived_at=now, cached_tokens=chance.randint(0, 1000))
        )
        first = order.first(waiting, now)
        waiting.remove(first)
        assert now - first.arrived_at <= 2.0 + len(cached) + 1


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 64, 500]), st.sampled_from([0.0, 1.0, 1.5, 90.0])), min_size=1
    ),
    st.sampled_from([0.0, 1.0, 2.0, 64.0, 1000.0]),
)
def test_highest_response_ratio_goes_first_then_the_smaller_then_the_earlier(waiting, now):
    tickets = [
        Ticket(number=number, tenant="a", cost=1.0, arrived_at=arrived, uncached_tokens=tokens)
        for number, (tokens, arrived) in enumerate(waiting)
    ]

    def order(ticket):
        size = max(1, ticket.uncached_tokens)
        return -max(0.0, now - ticket.arrived_at) / size, size, ticket.number

    assert tenant_order("hrrn").first(tickets, now) == min(tickets, key=order)
