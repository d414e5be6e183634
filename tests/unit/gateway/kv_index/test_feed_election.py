"""The election of the gateways that follow a feed, while gateways come and go and know different workers."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kv_index.feed_election import (
    PATIENCE_MAX,
    STABLE_ROUNDS,
    UNREACHABLE_PATIENCE,
    FollowerStatus,
    claim,
    ranking,
)
from radix_cache.shared.feed_lease_store import NO_GATEWAY, FeedLease, FeedState

A, B, C = (bytes([number]) * 8 for number in (1, 2, 3))
WARM = FollowerStatus(wanted=True, follows=True, warm=True, known=FeedState.WHOLE)
COLD = FollowerStatus(wanted=True)


def elect(lease, gateways, stands, *, worker="w", rounds=60):
    """Round after round each gateway claims in its turn; gives the lease, and how often it changed hands."""
    still, hands = 0, 0
    for _ in range(rounds):
        for me in sorted(gateways):
            follows = me in (lease.writer, lease.second)
            stand = stands.get(me, WARM)
            mine = stand if follows or not stand.wanted else COLD
            wanted = claim(worker, lease, frozenset(gateways), me, mine, still)
            if wanted != lease:
                hands += (wanted.writer, wanted.second) != (lease.writer, lease.second)
                still = 0 if (wanted.writer, wanted.second) != (lease.writer, lease.second) else still
                lease = wanted
        still += 1
    return lease, hands


@given(
    st.sets(
        st.binary(min_size=8, max_size=8).filter(lambda name: name != NO_GATEWAY), min_size=1, max_size=12
    ),
    st.data(),
)
def test_in_the_end_the_first_two_of_the_ranking_have_it(gateways, data):
    anybody = st.sampled_from([*sorted(gateways), NO_GATEWAY, b"\xffgone!!\xff"])
    lease = FeedLease(data.draw(anybody), data.draw(anybody))
    if lease.writer == lease.second:
        lease = FeedLease(lease.writer)
    settled, _ = elect(lease, gateways, {})
    order = ranking("w", frozenset(gateways))
    assert (settled.writer, settled.second) == (order[0], order[1] if len(order) > 1 else NO_GATEWAY)
    assert elect(settled, gateways, {})[1] == 0


def test_the_warm_second_writes_at_once_when_the_writer_is_gone():
    wanted = claim("w", FeedLease(A, B), frozenset({B, C}), B, WARM, 0)
    assert (wanted.writer, wanted.second, wanted.known) == (B, NO_GATEWAY, FeedState.WHOLE)
    # No other gateway takes the feeds that fall to it.
    assert claim("w", FeedLease(A, B), frozenset({B, C}), C, COLD, PATIENCE_MAX) == FeedLease(A, B)


def test_a_writer_that_takes_over_without_having_followed_the_feed_vouches_for_nothing():
    before = FeedLease(A, NO_GATEWAY, FeedState.WHOLE)
    assert claim("w", before, frozenset({B}), B, COLD, 0) == FeedLease(B, NO_GATEWAY, FeedState.NOTHING)


def test_a_better_gateway_with_an_incomplete_record_does_not_become_writer():
    first, other = ranking("w", frozenset({A, B}))
    lease = FeedLease(other, first, FeedState.WHOLE)
    less = FollowerStatus(wanted=True, follows=True, warm=True, known=FeedState.UNCERTAIN)
    assert claim("w", lease, frozenset({A, B}), first, less, 100) == lease
    assert claim("w", lease, frozenset({A, B}), first, WARM, STABLE_ROUNDS).writer == first


def test_a_worker_that_the_preferred_gateway_does_not_have_is_followed_by_others():
    gateways = {A, B, C}
    first = ranking("w", frozenset(gateways))[0]
    settled, _ = elect(FeedLease(), gateways, {first: FollowerStatus(wanted=False)})
    assert first not in (settled.writer, settled.second)
    assert NO_GATEWAY not in (settled.writer, settled.second)


def test_a_gateway_that_no_longer_follows_the_feed_gives_its_lease_back():
    assert (
        claim("w", FeedLease(A, B), frozenset({A, B}), A, FollowerStatus(wanted=False), 0).writer
        == NO_GATEWAY
    )
    assert claim("w", FeedLease(A), frozenset({A}), A, FollowerStatus(wanted=False), 0).packed() == b""


DEAF = FollowerStatus(wanted=True, follows=True, unreachable=True)


def test_a_gateway_without_the_workers_events_leaves_it_to_others_and_keeps_it_if_there_are_none():
    assert claim("w", FeedLease(A, B), frozenset({A, B}), A, DEAF, 9) == FeedLease(NO_GATEWAY, B)
    assert claim("w", FeedLease(A, B), frozenset({A, B}), B, DEAF, 9) == FeedLease(A, NO_GATEWAY)
    assert claim("w", FeedLease(A), frozenset({A}), A, DEAF, 9) == FeedLease(A)


def test_a_gateway_that_received_no_events_takes_only_workers_without_another_follower():
    deaf = FollowerStatus(wanted=True, unreachable=True)
    gateways = frozenset({A, B})
    first, _ = ranking("w", gateways)
    assert claim("w", FeedLease(), gateways, first, deaf, UNREACHABLE_PATIENCE - 1) == FeedLease()
    assert claim("w", FeedLease(), gateways, first, deaf, UNREACHABLE_PATIENCE).writer == first
    third = next(name for name in (A, B, C) if ranking("w", frozenset({A, B, C}))[0] == name)
    writer, second = {A, B, C} - {third}
    # Nor does it take the place of one that hears.
    assert claim("w", FeedLease(writer, second), frozenset({A, B, C}), third, deaf, 100).second == second


def test_a_gateway_that_was_missed_itself_claims_nothing():
    assert claim("w", FeedLease(), frozenset({A}), B, WARM, 100) == FeedLease()


@pytest.mark.parametrize("gateways", [2, 10, 100])
def test_writers_are_spread_evenly(gateways):
    names = frozenset(number.to_bytes(8, "big") for number in range(1, gateways + 1))
    workers = 1000
    pairs = [ranking(f"gpu-{number}", names)[:2] for number in range(workers)]
    shares = Counter(pair[0] for pair in pairs) + Counter(pair[1] for pair in pairs)
    mean = 2 * workers / gateways
    assert max(shares.values()) < mean + 5 * mean**0.5
    assert len(shares) == gateways
