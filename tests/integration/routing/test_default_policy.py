"""The default policy loses to no shipped rule: a fixed subset of `make bench-routing`, in simulated fleets."""

import pytest

from tests.benchmarks.routing.default_check import ROWS, checked


@pytest.mark.parametrize("queued", [False, True], ids=["sent at once", "queued"])
@pytest.mark.parametrize("row", ROWS)
def test_the_default_policy_is_hardly_behind_the_best_of_all_rules(row, queued):
    assert checked((row, queued)) == []
