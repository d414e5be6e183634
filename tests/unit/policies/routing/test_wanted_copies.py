"""Copies of prefixes that many requests share: how much of the demand deserves one, and what that costs."""

from msgspec.structs import replace

from policies.routing.compute_price import fleet_totals
from policies.routing.protocol import SharedPrefix
from policies.routing.wanted_copies import wanted_copies
from tests.unit.policies.routing.candidates import best, candidate, policy, query


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
