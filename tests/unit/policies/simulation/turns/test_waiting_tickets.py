"""The search for the requests that go next, held to a plain look at all tickets."""

from random import Random

import pytest

from policies.queueing.flow_heads import flow_of
from policies.queueing.protocol import Ticket
from policies.registry import tenant_order
from policies.simulation.turns.waiting_tickets import FlowHeadSearch, WaitingTickets

WORKERS = (None, 0, 1, 2)
OF_FLOW_MAX = 4


def tickets(random, count):
    return [
        Ticket(
            number=number,
            tenant=random.choice("ab"),
            cost=1.0,
            arrived_at=0.1 * number,
            uncached_tokens=random.randint(1, 5000),
            cached_tokens=random.randint(0, 5000),
            service_class=random.choice(("chat", "code")),
        )
        for number in range(count)
    ]


def plain_heads(order, left, awaited, passed_over, workers, now):
    """Return the first ticket of each flow, by a look at all of them."""
    heads = {}
    for flow in {flow_of(ticket) for ticket in left}:
        offered = [
            ticket
            for ticket in left
            if flow_of(ticket) == flow
            and ticket.number not in passed_over
            and (workers is None or awaited.get(ticket.number) in workers)
        ]
        if offered and sum(flow_of(ticket) == flow for ticket in passed_over.values()) < OF_FLOW_MAX:
            heads[flow] = order.first(offered, now)
    return heads


@pytest.mark.parametrize("within", ["fcfs", "hrrn", "longest_prefix", "edf"])
@pytest.mark.parametrize("seed", range(5))
def test_a_search_offers_the_tickets_that_a_look_at_all_of_them_offers(within, seed):
    random, order = Random(seed), tenant_order(within)
    left, waiting, awaited, passed_over = tickets(random, 40), WaitingTickets(), {}, {}
    for ticket in left:
        waiting.add(ticket)
        awaited[ticket.number] = random.choice(WORKERS)
        waiting.flows[flow_of(ticket)].await_worker(ticket.number, awaited[ticket.number])
    search = FlowHeadSearch(waiting, order, 10.0, of_flow_max=OF_FLOW_MAX)
    allowed = None
    while left:
        if random.random() < 0.3:  # As workers fill up, fewer are left; a new window may allow more.
            allowed = random.choice((None, set(random.sample(WORKERS, random.randint(1, 4)))))
        heads = {
            flow_of(head): head for head in search.heads(None if allowed is None else allowed.__contains__)
        }
        assert heads == plain_heads(order, left, awaited, passed_over, allowed, 10.0)
        chosen = random.choice(list(heads.values()) or left)
        if heads and random.random() < 0.4:
            search.pass_over(chosen)
            passed_over[chosen.number] = chosen
        else:
            left.remove(chosen)
            assert waiting.remove(chosen)
            assert not waiting.remove(chosen)
    assert (waiting.count, waiting.flows, waiting.weights) == (0, {}, {})


def test_a_ticket_that_is_estimated_again_stays_in_its_flow_with_the_worker_that_it_awaits():
    waiting = WaitingTickets()
    before, after = (
        Ticket(number=1, tenant="a", cost=1.0, arrived_at=0.0, uncached_tokens=n) for n in (9, 4)
    )
    waiting.add(before)
    waiting.flows[flow_of(before)].await_worker(1, 2)
    waiting.replace(before, after)
    assert (waiting.totals_of("a").requests, waiting.totals_of("a").tokens) == (1, 4)
    assert waiting.awaited() == {2}
    assert waiting.flows[flow_of(before)].by_awaited == {2: {1: after}}
