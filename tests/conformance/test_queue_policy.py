"""What every registered QueuePolicy promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.queueing.protocol import QueueCounters, Ticket
from policies.registry import queue_names, queue_policy

tickets = st.lists(
    st.builds(
        Ticket,
        number=st.integers(0, 1000),
        tenant=st.sampled_from(["a", "b", "c"]),
        cost=st.floats(0, 1e6),
        arrived_at=st.floats(0, 1e6),
        weight=st.floats(0.1, 10),
    ),
    max_size=8,
    unique_by=lambda ticket: ticket.number,
)


@pytest.fixture(scope="module", params=queue_names())
def policy(request):
    return queue_policy(request.param)


@given(waiting=tickets)
def test_somebody_goes_whenever_somebody_waits(policy, waiting):
    turn = policy.next(QueueCounters(), waiting, 0.0)
    assert (turn is None) == (not waiting)
    assert turn is None or turn.ticket in waiting


@given(waiting=tickets)
def test_everybody_goes_in_the_end(policy, waiting):
    counters, left, gone = QueueCounters(), list(waiting), []
    for ticket in waiting:
        counters = policy.arrive(counters, ticket)
    while left:
        turn = policy.next(counters, left, 0.0)
        left.remove(turn.ticket)
        gone.append(turn.ticket)
        counters = policy.settle(turn.counters, turn.ticket.tenant, turn.ticket.weight, 1.0)
    assert sorted(t.number for t in gone) == sorted(t.number for t in waiting)


@given(waiting=tickets)
def test_deciding_changes_nothing_that_was_given(policy, waiting):
    counters, before = QueueCounters(), list(waiting)
    policy.next(counters, waiting, 0.0)
    assert (counters, waiting) == (QueueCounters(), before)


def test_fifo_goes_by_arrival():
    waiting = [Ticket(number=n, tenant="a", cost=1, arrived_at=0) for n in (3, 1, 2)]
    assert queue_policy("fifo").next(QueueCounters(), waiting, 0.0).ticket.number == 1
