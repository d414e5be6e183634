"""Windows of workers: the small sums that decide who goes, who waits and who is told to come back."""

import pytest

from policies.admission.dispatch_window import fits_window
from policies.admission.waiting_room import retry_after_seconds


def test_an_idle_worker_takes_any_prompt():
    assert fits_window(0, 1_000_000, 16384)


@pytest.mark.parametrize(
    ("queued", "own", "fits"), [(100, 16284, True), (100, 16285, False), (16384, 1, False)]
)
def test_the_window_is_exact(queued, own, fits):
    assert fits_window(queued, own, 16384) is fits


def test_who_is_refused_may_come_back_when_the_queue_has_drained():
    assert retry_after_seconds(100, 10.0, 30.0) == 10.0
    assert retry_after_seconds(1, 10.0, 30.0) == 1.0
    assert retry_after_seconds(1000, 10.0, 30.0) == 30.0
    assert retry_after_seconds(1000, 0.0, 30.0) == 1.0
