"""The latency model: what it learns, how fast, and which samples it ignores."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.latency_model import (
    COMPUTED_MAX,
    PACE,
    PrefillFit,
    computed_tokens,
    mean_speed,
    predicted_ttft_ms,
    predicted_ttft_p95_ms,
    tokens_counted,
    tokens_within,
    updated_step_ms,
)
from workers.worker import Speed


def fitted(speed: Speed, samples: list[tuple[int, float]]) -> PrefillFit:
    fit = PrefillFit.from_speed(speed)
    for tokens, ttft_ms in samples:
        fit = fit.updated(tokens, ttft_ms)
    return fit


def answers(random: Random, count: int, fixed_ms: float, ms_per_token: float, noise: float = 0.1):
    """Answers of a worker of that speed, off by a tenth or so."""
    for _ in range(count):
        tokens = int(10 ** random.uniform(1, 4.5))
        yield tokens, (fixed_ms + ms_per_token * tokens) * random.gauss(1, noise)


@pytest.mark.parametrize(("fixed_ms", "ms_per_token"), [(20, 0.1), (5, 0.02), (300, 2.0), (0.5, 0.005)])
def test_both_constants_are_learnt_from_noisy_answers_of_all_lengths(fixed_ms, ms_per_token):
    fit = fitted(Speed(), list(answers(Random(7), 400, fixed_ms, ms_per_token)))
    assert fit.fixed_ms == pytest.approx(fixed_ms, rel=0.3)
    assert fit.ms_per_token == pytest.approx(ms_per_token, rel=0.15)


def test_a_hundred_answers_lead_from_a_guess_that_is_ten_times_off_to_a_fifth_of_the_truth():
    random = Random(3)
    for factor in (10, 0.1):
        seed = Speed(fixed_ms=20 * factor, ms_per_token=0.1 * factor)
        speed = fitted(seed, list(answers(random, 100, 20, 0.1))).speed(seed)
        assert predicted_ttft_ms(speed, 8000) == pytest.approx(820, rel=0.2)


def test_a_worker_that_became_four_times_slower_is_believed_within_fifty_answers():
    random = Random(5)
    samples = [*answers(random, 300, 20, 0.1), *answers(random, 50, 80, 0.4)]
    speed = fitted(Speed(), samples).speed(Speed())
    assert predicted_ttft_ms(speed, 8000) == pytest.approx(3280, rel=0.25)


def test_one_stalled_request_does_not_turn_the_ranking_over():
    for already in (0, 200):
        fit = fitted(Speed(), list(answers(Random(1), already, 20, 0.1)))
        before = predicted_ttft_ms(fit.speed(Speed()), 1000)
        after = predicted_ttft_ms(fit.updated(1000, 60_000.0).speed(Speed()), 1000)
        assert after < 2 * before


def test_a_day_of_equal_prompts_does_not_wind_the_fit_up():
    fit = fitted(Speed(), [(512, 70.0)] * 20_000)
    assert fit.fixed_variance + fit.slope_variance <= 10.0
    other = fit.updated(4096, 430.0).speed(Speed())
    assert predicted_ttft_ms(other, 512) == pytest.approx(70, rel=0.5)


@given(st.lists(st.tuples(st.integers(0, 2_000_000), st.floats(0, 1e7)), max_size=80))
def test_whatever_comes_speeds_stay_finite_and_positive(samples):
    fit = fitted(Speed(), samples)
    assert 0 < fit.fixed_ms <= 120_000
    assert 0 < fit.ms_per_token <= 1000
    assert 0 < fit.error_ms < 1e9
    assert fit.fixed_variance >= 0
    assert fit.slope_variance >= 0
    assert fit.covariance**2 <= fit.fixed_variance * fit.slope_variance * (1 + 1e-6) + 1e-9


def test_steps_follow_slowly_and_stay_positive():
    step_ms = 20.0
    assert updated_step_ms(step_ms, 1e9) == pytest.approx(21.0)
    for _ in range(1000):
        step_ms = updated_step_ms(step_ms, 0.0)
    assert step_ms > 0


def test_about_one_first_token_in_twenty_takes_longer_than_is_predicted_for_95_of_100():
    random, known = Random(11), Random(7)
    fit = fitted(Speed(), list(answers(known, 400, 20, 0.1)))
    speed = fit.speed(Speed())
    later = [
        ttft_ms > predicted_ttft_p95_ms(speed, fit.error_ms, tokens)
        for tokens, ttft_ms in answers(random, 2000, 20, 0.1)
    ]
    assert 0.01 <= sum(later) / len(later) <= 0.1


@pytest.mark.parametrize(
    ("queued", "counted"),
    [
        pytest.param(100, 100, id="the same queue is the same wait"),
        pytest.param(150, 150, id="tokens sent since are ahead, too"),
        pytest.param(60, 100, id="of what left 40 were taken off before: 60 - 0 are ahead, as 100 - 40 were"),
        pytest.param(20, 60, id="all that is left is ahead"),
    ],
)
def test_tokens_that_an_estimate_took_off_as_computed_are_not_taken_off_again_when_they_leave(
    queued, counted
):
    assert tokens_counted(queued, queued_then=100, computed_then=40) == counted


def test_a_queue_of_few_tokens_is_not_computed_before_the_time_that_a_prompt_takes_besides_its_tokens():
    speed = Speed(ms_per_token=0.1, fixed_ms=20.0)
    assert computed_tokens(10, 100, speed) < 50
    assert computed_tokens(1000, 100, speed) == 100 * COMPUTED_MAX
    # The fixed time is hardly anything of a long queue's.
    assert computed_tokens(500, 10_000, speed) == pytest.approx(5000 * PACE, rel=0.05)


def test_the_tokens_of_a_time_are_those_that_are_predicted_to_take_it():
    speed = Speed(ms_per_token=0.5, fixed_ms=20.0)
    assert tokens_within(speed, predicted_ttft_ms(speed, 300)) == 300
    assert tokens_within(speed, 10.0) == 0


def test_the_mean_speed_of_workers_is_the_mean_of_each_constant():
    one, other = Speed(fixed_ms=10.0, ms_per_token=0.1, step_ms=20.0), Speed(fixed_ms=30.0, ms_per_token=0.3)
    assert mean_speed([one, other]) == Speed(fixed_ms=20.0, ms_per_token=0.2, step_ms=20.0)
