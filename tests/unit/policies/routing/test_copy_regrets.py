"""Copy regrets: waits for one more copy of a prefix add up to its price, and are forgotten in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.routing.copy_regrets import PAYBACK_SECONDS, PREFIXES_MAX, RememberedRegrets
from policies.routing.protocol import CopyRegret, RouteQuery, SharedPrefix
from tests.unit.policies.routing.candidates import candidate, policy, query

PART = 3584
"""Tokens of the shared prefix: seven blocks, 358.4 ms of prefill."""
PRICE_MS = 358.4


def asked(regret_ms: float, *, requests: int = 1, prompt: int = 4000) -> RouteQuery:
    """A request that shares seven blocks with others under way; one worker holds them."""
    shared = [SharedPrefix(PART, requests, 1, regret_ms)]
    return replace(query(prompt, blocks=tuple(range(7, 15))), shared=shared)


def holder_and_others(queued: int, streams: int = 4) -> list:
    """The holder with so many tokens queued, and three other workers as full of streams, so that none is light."""
    others = [candidate(name, streams=streams) for name in "bcd"]
    return [candidate("a", matched=PART, tokens_queued=queued, streams=streams), *others]


def copied(regrets: RememberedRegrets, queued: int) -> bool:
    """Route one request as a gateway does; return whether it makes a copy."""
    ranking = policy("cost", (("delay_weight", 0.0),)).rank(
        asked(regrets.ms(7, 1, 0.0)), holder_and_others(queued), 0.0
    )
    regrets.record(ranking[0].regrets, 0.0)
    return ranking[0].worker != "a"


@given(st.lists(st.integers(50, 900), min_size=80, max_size=80))
def test_requests_wait_in_all_no_longer_than_the_copy_takes_and_then_it_is_made(queues):
    regrets, waited = RememberedRegrets(), 0.0
    for queued in queues:
        if copied(regrets, queued):
            break
        waited += (
            0.1 * queued * (1 - 0.1 * queued / 4 / 100)
        )  # ms per token; the price is the mean backlog / 100 ms
    else:
        raise AssertionError("no copy was made")
    # What it computes anew costs the price of compute, too, which is below 1/4 here.
    assert waited <= 1.25 * PRICE_MS
    assert regrets.ms(7, 1, 0.0) == 0


def test_without_waits_no_copy_is_made():
    regrets = RememberedRegrets()
    assert not any(copied(regrets, 0) for _ in range(100))
    assert regrets.ms(7, 1, 0.0) == 0


def test_steps_shared_with_running_streams_are_no_wait_for_a_copy():
    # The holder's steps take 20 ms longer for its streams, as an idle worker's will once it serves some, too.
    fleet = [candidate("a", matched=PART, streams=3), candidate("idle")]
    (best, *_) = policy("cost", ()).rank(asked(0.0), fleet, 0.0)
    assert best.worker == "a"
    assert best.regrets == ()


def test_waits_under_backlog_pay_for_no_copy():
    fleet = [candidate("a", matched=PART, tokens_queued=6000, streams=4)]
    fleet += [candidate(name, streams=4, tokens_queued=5000) for name in "bcd"]
    (best, *_) = policy("cost", ()).rank(asked(0.0), fleet, 0.0)
    assert best.worker == "a"
    assert best.regrets == ()


def test_a_prompt_that_shares_nothing_leaves_no_regret():
    routes = policy("cost", ()).rank(query(blocks=tuple(range(7, 15))), holder_and_others(500), 0.0)
    assert all(route.regrets == () for route in routes)


def test_a_credit_pays_for_no_more_than_the_copy():
    some, plenty = (
        {
            route.worker: route.terms
            for route in policy("cost", ()).rank(asked(ms), holder_and_others(500), 0.0)
        }
        for ms in (100.0, 1e9)
    )
    assert some["b"].copy_ms == pytest.approx(-100)
    # A backlog of 50 ms on one of four workers is a price of 1/8, and four streams bear a delay of 0.02 each.
    assert plenty["b"].copy_ms == pytest.approx(-PRICE_MS * (1 + 0.125 + 0.08))
    assert plenty["a"].copy_ms == 0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1000)), max_size=30))
def test_what_is_remembered_is_never_more_than_was_waited_and_fades(waits):
    regrets, now, waited = RememberedRegrets(), 0.0, 0.0
    for seconds, ms in waits:
        now += seconds
        waited += ms
        regrets.record([CopyRegret(7, 1, ms)], now)
        assert 0 <= regrets.ms(7, 1, now) <= waited * (1 + 1e-9)
    assert regrets.ms(7, 1, now + 100 * PAYBACK_SECONDS) == pytest.approx(0, abs=1e-6)


def test_the_prefix_recorded_least_recently_is_forgotten_first():
    regrets = RememberedRegrets()
    for block in range(PREFIXES_MAX):
        regrets.record([CopyRegret(block, 1, 5.0)], 0.0)
    regrets.record([CopyRegret(0, 1, 5.0), CopyRegret(PREFIXES_MAX, 1, 5.0)], 0.0)
    assert len(regrets) == PREFIXES_MAX
    assert (regrets.ms(0, 1, 0.0), regrets.ms(1, 1, 0.0)) == (10.0, 0.0)


def test_each_of_several_gateways_counts_for_the_others_until_one_of_them_makes_the_copy():
    regrets = RememberedRegrets()
    regrets.record([CopyRegret(7, 2, 5.0)], 0.0, gateways=4)
    assert regrets.ms(7, 2, 0.0) == 20
    assert regrets.ms(7, 1, 0.0) == 20, "a holder may have evicted it"
    assert regrets.ms(7, 3, 0.0) == 0
    regrets.record([CopyRegret(7, 3, 5.0)], 0.0, gateways=4)
    assert regrets.ms(7, 3, 0.0) == 20
