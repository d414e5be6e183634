"""The counters of a waiting room: what its tenants have received, and the requests in it."""

import asyncio
import random
import tracemalloc

import msgspec
import pytest

from gateway.queueing.room_counters import RoomCounters
from gateway.queueing.waiters import Waiter, Waiters
from policies.queueing.protocol import QueueCounters, QueueTurn, Ticket
from policies.registry import queue_names, queue_policy


def ticket(number, tenant="a", cost=4.0, tokens=10):
    return Ticket(number=number, tenant=tenant, cost=cost, arrived_at=0.0, uncached_tokens=tokens)


def grant(counters, one):
    counters.arrives(one, ())
    counters.granted(counters.next((one,), 0.0))


def test_a_turn_that_is_only_looked_at_is_not_counted():
    counters = RoomCounters(queue_policy("sfq"))
    counters.arrives(ticket(0), ())
    before = counters.debts()
    counters.next((ticket(0),), 0.0)
    assert counters.debts() == before


def test_the_tenant_that_has_received_less_goes_first():
    counters = RoomCounters(queue_policy("sfq"))
    grant(counters, ticket(0, "a"))
    heads = (ticket(1, "a"), ticket(2, "b"))
    for head in heads:
        counters.arrives(head, ())
    assert counters.next(heads, 0.0).ticket.tenant == "b"


def test_a_request_counted_by_another_policy_is_not_corrected_in_these_counters():
    counters = RoomCounters(queue_policy("sfq"), counted_from=5)
    counters.correct(ticket(1), 1000.0)
    assert counters.debts() == {}


def test_a_request_that_was_carried_over_is_corrected_once():
    counters = RoomCounters(queue_policy("sfq"), counted_from=5, carried=[ticket(1)])
    grant(counters, ticket(1))
    counters.correct(ticket(1), 1000.0)
    once = counters.debts()
    counters.correct(ticket(1), 1000.0)
    assert counters.debts() == once


@pytest.mark.parametrize("name", queue_names())
def test_counters_changed_in_place_are_those_that_a_policy_makes_as_values(name):
    policy = queue_policy(name)
    counters, value, drawn = RoomCounters(policy), QueueCounters(), random.Random(7)
    for number in range(4000):
        # More tenants than may have tags, some of which come often.
        one = ticket(number, f"t{int(drawn.paretovariate(0.5)) % 3000}", cost=drawn.uniform(1, 40_000))
        counters.arrives(one, ())
        turn = counters.next((one,), 0.0)
        value = policy.arrive(value, one, ())
        value_turn = policy.next(value, (one,), 0.0)
        assert turn.ticket == value_turn.ticket
        if drawn.random() < 0.8:
            counters.granted(turn)
            counters.correct(one, -0.5 * one.cost)
            value = policy.correct(value_turn.counters, one, -0.5 * one.cost)
    debts = {tenant: max(0.0, tag - value.virtual_time) for tenant, tag in value.tags.items()}
    assert counters.debts() == {tenant: debt for tenant, debt in debts.items() if debt > 0}


class TwoSteps:
    """A policy of another package, which makes its counters in several ways."""

    def arrive(self, counters, one, waiting):
        return counters.with_tags({one.tenant: 1.0}).with_tags({"all": 2.0}, virtual_time=0.5)

    def next(self, counters, waiting, now):
        tags = {**counters.tags, waiting[0].tenant: 5.0}
        return QueueTurn(ticket=waiting[0], counters=msgspec.structs.replace(counters, tags=tags))


def test_a_policy_may_change_counters_twice_or_replace_their_tags():
    counters = RoomCounters(TwoSteps())
    counters.arrives(ticket(0), ())
    assert counters.debts() == {"a": 0.5, "all": 1.5}
    turn = counters.next((ticket(0),), 0.0)
    assert counters.debts() == {"a": 0.5, "all": 1.5}
    counters.granted(turn)
    assert counters.debts() == {"a": 4.5, "all": 1.5}


def test_what_was_given_before_a_tag_was_adopted_is_no_debt():
    counters = RoomCounters(queue_policy("sfq"))
    grant(counters, ticket(0, "a"))
    counters.adopt("b", 1.0, 3.0)
    assert counters.debts() == {}
    grant(counters, ticket(1, "a"))
    grant(counters, ticket(2, "b"))
    assert counters.debts() == {"a": 1.0, "b": 2.0}


def test_a_turn_takes_as_much_memory_with_a_thousand_tenants_as_with_one():
    counters = RoomCounters(queue_policy("sfq"))
    for number in range(1000):
        grant(counters, ticket(number, f"t{number}"))
    tracemalloc.start()
    try:
        grant(counters, ticket(1000, "t500"))
        assert tracemalloc.get_traced_memory()[1] < 4096  # A copy of the tags has 36 KiB.
    finally:
        tracemalloc.stop()


def waiters(*tokens):
    made = Waiters()
    loop = asyncio.get_running_loop()
    for number, each in enumerate(tokens):
        made.enter(Waiter(ticket(number, tokens=each), lambda closed: None, loop.create_future()), 0.0)
    return made


async def test_the_smallest_prompt_that_waits_is_known_after_it_leaves():
    made = waiters(50, 20, 70)
    assert made.least_tokens() == 20
    made.remove(made.of(ticket(1)))
    assert made.least_tokens() == 50


async def test_a_waiter_whose_task_was_cancelled_can_use_no_turn():
    made = waiters(50, 20)
    made.of(ticket(0)).turn.cancel()
    assert [each.number for each in made.one_of_each_flow()] == [1]


async def test_a_failure_ends_all_waits_and_empties_the_room():
    made = waiters(50, 20)
    turns = [waiter.turn for waiter in made]
    made.fail(ZeroDivisionError())
    assert [type(turn.exception()) for turn in turns] == [ZeroDivisionError] * 2
    assert len(made) == 0


async def test_removing_a_waiter_twice_has_no_effect():
    made = waiters(50, 20)
    first = made.of(ticket(0))
    made.remove(first)
    made.remove(first)
    assert len(made) == 1
