"""Who fills a waiting room, how long one of a hurried class waits, and how fast a queue drains."""

import pytest

from policies.admission.dispatch_window import HOLD_MS, close_enough_to_best, worth_ranking_again
from policies.admission.waiting_room import (
    DRAIN_SECONDS,
    DrainRate,
    WaitingRoomBounds,
    WaitingTotals,
    refused_by,
    shed_after_seconds,
)

BOUNDS = WaitingRoomBounds(requests_max=10, tokens_max=1000)


@pytest.mark.parametrize(
    ("everybody", "own", "tenants", "tokens", "by"),
    [
        (WaitingTotals(0, 0), WaitingTotals(0, 0), 1, 5000, None),
        (WaitingTotals(9, 0), WaitingTotals(9, 0), 1, 1, None),
        (WaitingTotals(10, 0), WaitingTotals(10, 0), 1, 1, "tenant"),
        (WaitingTotals(10, 0), WaitingTotals(5, 0), 2, 1, "tenant"),
        (WaitingTotals(10, 0), WaitingTotals(4, 0), 2, 1, "everybody"),
        (WaitingTotals(10, 0), WaitingTotals(0, 0), 11, 1, "everybody"),
        (WaitingTotals(2, 900), WaitingTotals(1, 100), 2, 200, "everybody"),
        (WaitingTotals(2, 900), WaitingTotals(1, 800), 2, 200, "tenant"),
        (WaitingTotals(2, 900), WaitingTotals(1, 800), 2, 100, None),
    ],
    ids=str,
)
def test_who_has_an_even_share_of_a_full_room_is_told_so_and_the_others_are_not(
    everybody, own, tenants, tokens, by
):
    assert refused_by(BOUNDS, everybody, own, tenants, tokens) == by


@pytest.mark.parametrize(
    ("own", "tokens", "by"),
    [
        (WaitingTotals(2, 10), 1, "tenant"),
        (WaitingTotals(1, 90), 20, "tenant"),
        (WaitingTotals(1, 90), 10, None),
        (WaitingTotals(), 500, None),
    ],
    ids=str,
)
def test_a_tenants_own_bound_holds_also_in_an_empty_room(own, tokens, by):
    bounds = WaitingRoomBounds(requests_max=10, tokens_max=1000, tenant_requests_max=2, tenant_tokens_max=100)
    assert refused_by(bounds, own, own, 1, tokens) == by


def test_a_burst_may_wait_as_long_as_its_target_and_a_standing_queue_a_third_of_that():
    assert shed_after_seconds(0.2, 0.0) == shed_after_seconds(0.2, 0.2) == 0.2
    assert shed_after_seconds(0.2, 0.21) == pytest.approx(0.06)


def test_the_drain_rate_is_of_lately():
    rate = DrainRate()
    assert rate.per_second(0.0) == 0.0
    rate.record(0.0, 1000.0)
    rate.record(DRAIN_SECONDS, 10.0)
    rate.record(DRAIN_SECONDS + 1, 20.0)
    assert rate.per_second(DRAIN_SECONDS + 2) == pytest.approx(15.0)
    assert rate.per_second(3 * DRAIN_SECONDS) == 0.0


@pytest.mark.parametrize(
    ("cost", "hold", "goes"),
    [(1090.0, 0.1, True), (1110.0, 0.1, False), (1000.0, 0.0, True), (99999.0, None, True)],
    ids=str,
)
def test_a_worker_that_is_much_dearer_than_the_best_is_not_worth_going_to(cost, hold, goes):
    assert close_enough_to_best(cost, 1000.0, hold) is goes


def test_milliseconds_are_not_worth_a_wait():
    assert close_enough_to_best(1.0 + HOLD_MS, 1.0, 0.1)
    assert not close_enough_to_best(1.1 + HOLD_MS, 1.0, 0.1)


@pytest.mark.parametrize(
    ("queued", "least", "worth"),
    [
        (0, 100_000, True),
        (16_000, 384, True),
        (16_000, 385, False),
        (15_360, 100_000, True),
        (15_361, 100_000, False),
        (16_384, 1, False),
    ],
)
def test_room_for_the_smallest_that_waits_or_for_a_part_of_a_window_is_worth_a_look(queued, least, worth):
    assert worth_ranking_again(queued, least, 16_384) is worth


def test_room_in_a_narrow_window_is_worth_a_look_before_its_worker_is_idle():
    # All who wait had more to compute when they came, and fit now.
    assert worth_ranking_again(500, 5000, 1000)
    assert not worth_ranking_again(990, 5000, 1000)
