"""Windows of workers, and speeds: the small sums that decide who goes, who waits and who is told to come back."""

import pytest

from policies.admission import has_window, retry_after_seconds
from policies.latency_model import learn_prefill, learn_step, predicted_ttft_ms
from workers.worker import Speed


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


def test_the_model_learns_a_prefill_rate():
    speed = Speed(ms_per_token=1.0, fixed_ms=5.0)
    for _ in range(400):
        speed = learn_prefill(speed, 1000, 105.0)
        speed = learn_prefill(speed, 1, 5.0)
    assert predicted_ttft_ms(speed, 1000) == pytest.approx(105.0, rel=0.1)


def test_one_stalled_request_does_not_turn_the_model_over():
    speed = learn_prefill(Speed(ms_per_token=0.1), 1000, 60_000.0)
    assert speed.ms_per_token <= 0.1 * 1.06


def test_speeds_stay_positive_whatever_comes():
    speed = Speed()
    for _ in range(1000):
        speed = learn_step(learn_prefill(learn_prefill(speed, 1000, 0.0), 1, 0.0), 0.0)
    assert min(speed.ms_per_token, speed.fixed_ms, speed.step_ms) > 0
