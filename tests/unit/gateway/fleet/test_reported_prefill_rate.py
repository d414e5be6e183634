"""The prefill time of a prompt token, by an engine's own counters."""

import pytest

from gateway.fleet.reported_prefill_rate import TOKENS_ENOUGH, PrefillRate

ENOUGH = TOKENS_ENOUGH


def read(*readings):
    """The rate after each pair of counters."""
    rate, found = PrefillRate(), []
    for tokens, us in readings:
        rate.read(tokens, us)
        found.append(rate.ms_per_token)
    return found


def test_few_tokens_give_no_rate():
    assert read((0, 0), (ENOUGH - 1, 10**6)) == [None, None]


def test_the_first_reading_covers_the_time_since_the_engine_started():
    assert read((10 * ENOUGH, 1000 * 10 * ENOUGH)) == [1.0]


def test_the_fastest_stretch_counts():
    assert read((ENOUGH, 900 * ENOUGH), (2 * ENOUGH, 1000 * ENOUGH), (3 * ENOUGH, 1500 * ENOUGH)) == [
        pytest.approx(0.9),
        pytest.approx(0.1),
        pytest.approx(0.1),
    ]


def test_small_steps_are_put_together_until_they_are_enough():
    steps = [(at * 1000, at * 1000 * 50) for at in range(1, 12)]
    found = read(*steps)
    assert found[7:9] == [None, pytest.approx(0.05)]


def test_an_engine_that_has_restarted_is_another_one():
    rate = PrefillRate()
    assert rate.read(ENOUGH, 100 * ENOUGH)
    assert not rate.read(5, 1000)
    assert rate.ms_per_token is None
    assert rate.read(ENOUGH + 5, 1000 + 300 * ENOUGH)
    assert rate.ms_per_token == pytest.approx(0.3, rel=0.01)


def test_it_returns_whether_the_rate_has_changed():
    rate = PrefillRate()
    assert [
        rate.read(ENOUGH, 100 * ENOUGH),
        rate.read(ENOUGH + 1, 100 * ENOUGH),
        rate.read(2 * ENOUGH, 900 * ENOUGH),
    ] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("us", [0, 10**15], ids=["no-time", "years"])
def test_what_cannot_be_is_bounded(us):
    rate = PrefillRate()
    rate.read(ENOUGH, us)
    assert rate.ms_per_token in (None, 1000.0)
