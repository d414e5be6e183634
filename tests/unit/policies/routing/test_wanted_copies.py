"""Copies of prefixes that many requests share: how much of the demand deserves one, and what that costs."""

import pytest
from msgspec.structs import replace

from policies.routing.compute_price import fleet_totals
from policies.routing.cost_route import CostTerms
from policies.routing.protocol import Candidate, RouteQuery, SharedPrefix
from policies.routing.wanted_copies import wanted_copies
from tests.unit.policies.routing.candidates import best, candidate, policy, query


def terms_of(worker: str, fleet: list[Candidate], asked: RouteQuery) -> CostTerms:
    """What the cost of one worker is made of."""
    return {route.worker: route.terms for route in policy("cost", ()).rank(asked, fleet, 0.0)}[worker]


def test_a_prefix_that_many_requests_share_is_copied_and_one_of_a_single_conversation_is_not():
    """The holder is a little slower than to compute the prefix anew; the copy is free where demand asks for it."""
    holder = candidate("a", matched=3900, tokens_queued=3300, streams=3)
    others = [candidate(name) for name in "bcd"]
    alone, many = query(), replace(query(), shared=[SharedPrefix(3900, 3, 1)])
    assert best("cost", [holder, *others], alone) == "a"
    assert best("cost", [holder, *others], many) in "bcd"
    assert best("cost", [holder, *others], many, copy_share=0) == "a"


def test_a_prefix_is_copied_no_further_than_its_demand():
    """Two of four workers hold it, and serve the half of all requests that has it."""
    holders = [candidate(name, matched=3900, tokens_queued=3300, streams=4) for name in "ab"]
    others = [candidate(name, streams=4) for name in "cd"]
    shared = [SharedPrefix(3900, 8, 2)]
    (none,) = wanted_copies(replace(query(), shared=shared), fleet_totals([*holders, *others]))
    assert none.share == 0
    assert best("cost", [*holders, *others], replace(query(), shared=shared)) in "ab"
    waiting = replace(query(), shared=[SharedPrefix(3900, 14, 2)], requests_waiting=6)
    (copy,) = wanted_copies(waiting, fleet_totals([*holders, *others]))
    assert (copy.begin, copy.end) == (0, 3900)
    assert 0 < copy.share < 1


def test_only_the_part_of_a_prompt_that_requests_share_is_cheaper_to_copy():
    one = replace(query(), shared=[SharedPrefix(1024, 9, 1), SharedPrefix(2048, 1, 1)])
    wanted = wanted_copies(one, fleet_totals([candidate(name, streams=2) for name in "abcd"]))
    assert [(copy.begin, copy.end, copy.share > 0) for copy in wanted] == [
        (0, 1024, True),
        (1024, 2048, False),
    ]
    everywhere = replace(query(), shared=[SharedPrefix(1024, 9, 4)])
    assert wanted_copies(everywhere, fleet_totals([candidate(name) for name in "abcd"])) == []


def test_a_worker_that_lacks_requests_gets_a_copy_where_the_holders_have_no_more_than_their_part():
    """Four prefixes are on two workers; the third has joined, and no prefix has more requests than its part."""
    busy = [candidate(name, matched=3900, tokens_queued=3600, streams=20) for name in "ab"]
    joined = candidate("c")
    shared = replace(query(), shared=[SharedPrefix(3900, 10, 2)])
    (copy,) = wanted_copies(shared, fleet_totals([*busy, joined]))
    assert copy.share == 0
    routes = policy("cost", ()).rank(shared, [*busy, joined], 0.0)
    assert {route.worker: route.terms.copy_ms for route in routes}["c"] < 0
    assert routes[0].worker == "c"


def test_a_prefix_that_is_still_coming_is_copied_to_an_idle_worker_whatever_the_backlog_of_its_holder():
    """Twelve requests wait at the holder, a second of prefill; they are most of the fleet's backlog."""
    holder = candidate("a", matched=3900, tokens_queued=10_000, streams=12)
    others = [candidate(name, tokens_queued=4000, streams=12) for name in "bc"]
    idle = candidate("d", streams=12)
    computed, coming = (
        replace(query(), shared=[SharedPrefix(3900, 12, 1, 0.0, known)]) for known in (True, False)
    )
    fleet = [holder, *others, idle]
    assert terms_of("d", fleet, coming).price_ms < terms_of("d", fleet, computed).price_ms / 5
    assert best("cost", fleet, computed) == "a"
    assert best("cost", fleet, coming) == "d"


def test_a_copy_of_a_coming_prefix_pays_for_the_backlog_of_its_worker_and_never_more_than_the_price():
    holder = candidate("a", matched=3900, tokens_queued=4000, streams=4)
    coming = replace(query(), shared=[SharedPrefix(3900, 1, 1, 0.0, False)])
    prices = [
        terms_of("b", [holder, candidate("b", tokens_queued=queued, streams=4)], coming).price_ms
        for queued in (0, 1000, 2000, 8000)
    ]
    assert prices == sorted(prices)
    assert prices[0] < prices[1] < prices[2]
    computed = replace(coming, shared=[SharedPrefix(3900, 1, 1)])
    fleet = [holder, candidate("b", tokens_queued=8000, streams=4)]
    paid, at_most = terms_of("b", fleet, coming), terms_of("b", fleet, computed)
    assert paid.price_ms + paid.delay_ms <= at_most.price_ms + at_most.delay_ms


def test_the_memory_of_a_coming_prefix_is_paid_by_all_requests_that_wait_for_it():
    state = {"streams": 8, "kv_tokens": 80_000, "kv_tokens_max": 100_000}
    fleet = [candidate("a", matched=3900, **state), candidate("b", **state)]
    coming = replace(query(), shared=[SharedPrefix(3900, 8, 1, 0.0, False)])
    computed = replace(coming, shared=[SharedPrefix(3900, 8, 1)])
    held, shared, whole = (
        terms_of(name, fleet, asked).memory_ms
        for name, asked in (("a", coming), ("b", coming), ("b", computed))
    )
    assert shared - held == pytest.approx((whole - held) * 2 / 10)


def test_the_more_requests_wait_for_a_coming_prefix_the_less_harm_each_pays_for_its_copy():
    fleet = [candidate("a", matched=3900, streams=40), candidate("b", streams=40)]
    fees = [
        terms_of("b", fleet, replace(query(), shared=[SharedPrefix(3900, requests, 1, 0.0, False)])).price_ms
        for requests in (1, 4, 16)
    ]
    # 390 ms of prefill delay 40 streams, at 0.02 each; a share of (h + 1) / (c + h) is paid.
    assert fees == pytest.approx([390 * 0.8 * 2 / (requests + 2) for requests in (1, 4, 16)])
