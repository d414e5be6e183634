"""When a prediction of the first token refuses a request."""

import pytest

from policies.admission.ttft_chance import SAMPLES_MIN, has_a_chance, in_time
from policies.latency_model import PrefillFit
from workers.worker import Speed

SPEED = Speed(fixed_ms=100.0, ms_per_token=0.1)


def fit(error_ms, samples=1000):
    return PrefillFit(fixed_ms=100.0, ms_per_token=0.1, error_ms=error_ms, samples=samples)


@pytest.mark.parametrize(("left_ms", "meets"), [(200.0, True), (199.0, False)])
def test_in_quiet_times_the_prediction_decides(left_ms, meets):
    assert in_time(SPEED, fit(0.1), 1000, left_ms) is meets
    assert has_a_chance(SPEED, fit(0.1), 1000, left_ms) is meets


def test_a_prediction_that_is_often_far_off_refuses_less():
    # One first token in five comes 0.92 usual errors sooner than predicted; at 1,000 tokens they double.
    assert has_a_chance(SPEED, fit(50.0), 1000, 109.0)
    assert not has_a_chance(SPEED, fit(50.0), 1000, 108.0)
    assert not in_time(SPEED, fit(50.0), 1000, 109.0)


def test_a_worker_with_few_samples_is_assumed_to_be_in_time():
    few = fit(0.1, SAMPLES_MIN - 1)
    assert in_time(SPEED, few, 1000, 1.0)
    assert has_a_chance(SPEED, few, 1000, 1.0)
