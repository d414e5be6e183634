"""The contracts of QueuePolicy and TenantOrder, for every registered one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.queueing.flow_heads import flow_heads, next_turn
from policies.queueing.protocol import QueueCounters, Ticket
from policies.registry import order_names, queue_names, queue_policy, tenant_order

tickets = st.lists(
    st.builds(
        Ticket,
        number=st.integers(0, 1000),
        tenant=st.sampled_from(["a", "b", "c"]),
        cost=st.floats(0, 1e6),
        arrived_at=st.floats(0, 1e6),
        weight=st.floats(0.1, 10),
        deadline=st.none() | st.floats(0, 1e6),
        uncached_tokens=st.integers(0, 10_000),
        cached_tokens=st.integers(0, 10_000),
        service_class=st.sampled_from(["voice", "chat", "batch", "unheard of"]),
        worker=st.sampled_from(["", "w0", "w1"]),
    ),
    max_size=8,
    unique_by=lambda ticket: ticket.number,
)


few = settings(max_examples=30, deadline=None)


@pytest.fixture(scope="module", params=queue_names())
def policy(request):
    return queue_policy(request.param)


@pytest.fixture(scope="module", params=order_names())
def order(request):
    return tenant_order(request.param)


@few
@given(waiting=tickets)
def test_a_request_has_its_turn_whenever_requests_wait(policy, waiting):
    turn = policy.next(QueueCounters(), waiting, 0.0)
    assert (turn is None) == (not waiting)
    assert turn is None or turn.ticket in waiting


@few
@given(waiting=tickets)
def test_every_ticket_gets_a_turn_in_the_end(policy, waiting):
    counters, left, gone = QueueCounters(), [], []
    for ticket in waiting:
        counters = policy.arrive(counters, ticket, left)
        left.append(ticket)
    while left:
        turn = policy.next(counters, left, 0.0)
        left.remove(turn.ticket)
        gone.append(turn.ticket)
        counters = policy.correct(turn.counters, turn.ticket, 1.0)
    assert sorted(t.number for t in gone) == sorted(t.number for t in waiting)


@few
@given(waiting=tickets)
def test_deciding_changes_nothing_that_was_given(policy, waiting):
    counters, before = QueueCounters(tags={"a": 1.0}), list(waiting)
    policy.next(counters, waiting, 0.0)
    for ticket in waiting:
        policy.arrive(counters, ticket, waiting)
        policy.correct(counters, ticket, 5.0)
    assert (counters, waiting) == (QueueCounters(tags={"a": 1.0}), before)


def test_what_is_kept_of_tenants_that_are_gone_is_bounded(policy):
    counters = QueueCounters()
    for number in range(2500):
        ticket = Ticket(number=number, tenant=f"t{number}", cost=10.0, arrived_at=0.0)
        counters = policy.next(policy.arrive(counters, ticket, []), [ticket], 0.0).counters
    assert len(counters.tags) <= 1100


@few
@given(waiting=tickets.filter(bool), now=st.floats(0, 2e6))
def test_an_order_returns_one_of_the_waiting_requests(order, waiting, now):
    assert order.first(waiting, now) in waiting


@few
@given(waiting=tickets, now=st.floats(0, 2e6))
def test_of_each_tenant_and_class_one_stands_in_front(order, waiting, now):
    front = flow_heads(waiting, order, now)
    flows = [(ticket.tenant, ticket.service_class) for ticket in front]
    assert sorted(flows) == sorted({(ticket.tenant, ticket.service_class) for ticket in waiting})


@few
@given(waiting=tickets, now=st.floats(0, 2e6))
def test_policy_and_order_go_together(policy, order, waiting, now):
    turn = next_turn(policy, order, QueueCounters(), waiting, now)
    assert (turn is None) == (not waiting)
    assert turn is None or turn.ticket in flow_heads(waiting, order, now)


def test_fifo_goes_by_arrival():
    waiting = [Ticket(number=n, tenant="a", cost=1, arrived_at=0) for n in (3, 1, 2)]
    assert queue_policy("fifo").next(QueueCounters(), waiting, 0.0).ticket.number == 1
