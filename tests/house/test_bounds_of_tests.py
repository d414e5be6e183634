"""The time limit of tests: one that hangs fails by its name, however its limit is set."""

import pytest

from tests.conftest import seconds_max


@pytest.mark.parametrize(
    ("marker", "seconds"),
    [
        (pytest.mark.timeout(7), 7),
        (pytest.mark.timeout(timeout=7), 7),
        (pytest.mark.timeout(0), 0),
    ],
    ids=["told", "named", "for ever"],
)
def test_a_test_has_the_time_bound_that_it_names(request, marker, seconds):
    request.node.add_marker(marker)
    assert seconds_max(request.node) == seconds


def test_a_test_without_a_bound_has_the_bound_of_all(request):
    told = request.config.getoption("timeout")
    expected = told if told is not None else request.config.getini("timeout")
    assert seconds_max(request.node) == float(expected)
