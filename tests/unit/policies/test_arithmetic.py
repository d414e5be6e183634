"""Buckets, windows and speeds: the small sums that decide who goes, who waits and who is told to come back."""

import pytest

from policies.admission import has_window, retry_after_seconds
from policies.gcra import Bucket

TEN_A_MINUTE = Bucket(amount=10, period_seconds=60)


def test_a_full_bucket_lets_all_of_it_through_at_once_and_no_more():
    tat, now = 0.0, 1000.0
    for left in reversed(range(10)):
        assert TEN_A_MINUTE.wait(tat, now, 1) == 0.0
        tat = TEN_A_MINUTE.spend(tat, now, 1)
        assert TEN_A_MINUTE.remaining(tat, now) == left
    assert TEN_A_MINUTE.wait(tat, now, 1) == pytest.approx(6.0)


def test_a_bucket_refills_evenly():
    tat = TEN_A_MINUTE.spend(0.0, 1000.0, 10)
    assert TEN_A_MINUTE.remaining(tat, 1006.0) == 1
    assert TEN_A_MINUTE.remaining(tat, 1059.0) == 9
    assert TEN_A_MINUTE.remaining(tat, 1060.0) == 10
    assert TEN_A_MINUTE.reset_seconds(tat, 1000.0) == 60.0


def test_a_cost_that_never_fits_is_told_so():
    assert TEN_A_MINUTE.wait(0.0, 1000.0, 11) is None
    assert TEN_A_MINUTE.wait(0.0, 1000.0, 10) == 0.0


@pytest.mark.parametrize("amount", [3, 7, 1000, 999_983])
@pytest.mark.parametrize("now", [0.1, 1234.567, 1.7e9 + 0.1])
def test_a_cost_of_the_whole_bucket_fits_whatever_the_clock_says(amount, now):
    bucket = Bucket(amount=amount, period_seconds=60)
    assert bucket.wait(0.0, now, amount) == 0.0
    assert bucket.remaining(bucket.spend(0.0, now, amount), now) == 0


def test_giving_back_is_the_opposite_of_taking():
    tat = TEN_A_MINUTE.spend(0.0, 1000.0, 5)
    tat = TEN_A_MINUTE.spend(tat, 1000.0, -3)
    assert TEN_A_MINUTE.remaining(tat, 1000.0) == 8


def test_a_refund_into_a_full_bucket_is_lost():
    tat = TEN_A_MINUTE.spend(0.0, 1000.0, 5)
    tat = TEN_A_MINUTE.spend(tat, 2000.0, -5)
    assert TEN_A_MINUTE.remaining(tat, 2000.0) == 10


def test_an_idle_worker_takes_any_prompt():
    assert has_window(0, 1_000_000, 16384)


@pytest.mark.parametrize(
    ("queued", "own", "fits"), [(100, 16284, True), (100, 16285, False), (16384, 1, False)]
)
def test_the_window_is_exact(queued, own, fits):
    assert has_window(queued, own, 16384) is fits


def test_who_is_refused_may_come_back_when_the_queue_has_drained():
    assert retry_after_seconds(100, 10.0, 30.0) == 10.0
    assert retry_after_seconds(1, 10.0, 30.0) == 1.0
    assert retry_after_seconds(1000, 10.0, 30.0) == 30.0
    assert retry_after_seconds(1000, 0.0, 30.0) == 1.0
