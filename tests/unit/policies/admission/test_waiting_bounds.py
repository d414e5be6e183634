"""The bounds of a waiting room: which request is refused, how long one may wait, and how fast a queue drains."""

import pytest

from policies.admission.waiting_bounds import (
    DRAIN_SECONDS,
    DrainRate,
    WaitingRoomBounds,
    WaitingTotals,
    refused_by,
    retry_after_seconds,
    shed_after_seconds,
)


def test_a_refused_request_may_come_back_when_the_queue_has_drained():
    assert retry_after_seconds(100, 10.0, 30.0) == 10.0
    assert retry_after_seconds(1, 10.0, 30.0) == 1.0
    assert retry_after_seconds(1000, 10.0, 30.0) == 30.0
    assert retry_after_seconds(1000, 0.0, 30.0) == 1.0


BOUNDS = WaitingRoomBounds(requests_max=10, tokens_max=1000)


@pytest.mark.parametrize(
    ("total", "own", "tenants", "tokens", "by"),
    [
        (WaitingTotals(0, 0), WaitingTotals(0, 0), 1, 5000, None),
        (WaitingTotals(9, 0), WaitingTotals(9, 0), 1, 1, None),
        (WaitingTotals(10, 0), WaitingTotals(10, 0), 1, 1, "tenant"),
        (WaitingTotals(10, 0), WaitingTotals(5, 0), 2, 1, "tenant"),
        (WaitingTotals(10, 0), WaitingTotals(4, 0), 2, 1, "others"),
        (WaitingTotals(10, 0), WaitingTotals(0, 0), 11, 1, "others"),
        (WaitingTotals(2, 900), WaitingTotals(1, 100), 2, 200, "others"),
        (WaitingTotals(2, 900), WaitingTotals(1, 800), 2, 200, "tenant"),
        (WaitingTotals(2, 900), WaitingTotals(1, 800), 2, 100, None),
    ],
    ids=str,
)
def test_a_full_room_refuses_a_tenant_with_an_even_share_by_its_own_bound_and_others_by_the_rooms(
    total, own, tenants, tokens, by
):
    assert refused_by(BOUNDS, total, own, tenants, tokens) == by


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
