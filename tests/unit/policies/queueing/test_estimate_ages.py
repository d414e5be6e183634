"""Which waiting request is estimated anew."""

import pytest

from policies.queueing.estimate_ages import AGE_SECONDS, EstimateAges


@pytest.fixture
def ages():
    made = EstimateAges()
    for at, request in enumerate("abc"):
        made.add(request, at * AGE_SECONDS / 4)
    return made


def test_waiting_requests_are_estimated_in_turn_the_oldest_estimate_first(ages):
    assert [ages.take_due(2 * AGE_SECONDS) for _ in range(4)] == ["a", "b", "c", None]


def test_a_young_estimate_is_kept(ages):
    assert [ages.take_due(AGE_SECONDS * 1.01), ages.take_due(AGE_SECONDS * 1.01)] == ["a", None]


def test_a_request_that_waits_no_longer_is_not_estimated(ages):
    ages.remove("a")
    ages.remove("a")
    assert ages.take_due(2 * AGE_SECONDS) == "b"


def test_without_waiting_requests_none_is_due():
    assert EstimateAges().take_due(1.0) is None
