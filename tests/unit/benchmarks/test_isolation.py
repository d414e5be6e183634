"""The test of the isolation audit, against values from elsewhere and against what it must be."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.isolation import kolmogorov_smirnov

samples = st.lists(st.floats(0, 100), min_size=1, max_size=30)


@pytest.mark.parametrize(("scaled", "probability"), [(1.22, 0.10), (1.36, 0.05), (1.63, 0.01), (1.95, 0.001)])
def test_the_usual_critical_values_come_out(scaled, probability):
    """For large samples D * sqrt(ab / (a + b)) exceeds 1.36 in one of twenty cases, as every table has it."""
    size = 200_000
    wanted = scaled / (size / 2) ** 0.5
    shift = round(wanted * size)
    distance, found = kolmogorov_smirnov(range(size), range(shift, size + shift))
    assert distance == pytest.approx(wanted, rel=0.01)
    assert found == pytest.approx(probability, rel=0.1)


def test_samples_that_do_not_meet_are_as_far_apart_as_can_be():
    distance, probability = kolmogorov_smirnov([1, 2, 3] * 10, [7, 8, 9] * 10)
    assert distance == 1.0
    assert probability < 1e-9


@given(samples, samples)
def test_the_distance_is_that_of_the_distribution_functions(one, other):
    def share(values, limit):
        return sum(value <= limit for value in values) / len(values)

    expected = max(abs(share(one, limit) - share(other, limit)) for limit in [*one, *other])
    distance, probability = kolmogorov_smirnov(one, other)
    assert distance == pytest.approx(expected)
    assert 0.0 <= probability <= 1.0
    assert kolmogorov_smirnov(other, one) == pytest.approx((distance, probability))


def test_samples_of_one_distribution_seldom_seem_to_be_of_two():
    chance = random.Random(5)
    found = [
        kolmogorov_smirnov([chance.gauss(0, 1) for _ in range(40)], [chance.gauss(0, 1) for _ in range(40)])[
            1
        ]
        for _ in range(300)
    ]
    assert sum(probability < 0.05 for probability in found) < 300 * 0.1
