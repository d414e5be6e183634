"""How much more a worker may cost than the best one."""

import pytest

from policies.admission.hold import HOLD_MS, close_enough_to_best


@pytest.mark.parametrize(
    ("cost", "hold", "goes"),
    [(1090.0, 0.1, True), (1110.0, 0.1, False), (1000.0, 0.0, True), (99999.0, None, True)],
    ids=str,
)
def test_a_worker_that_is_much_dearer_than_the_best_is_not_worth_going_to(cost, hold, goes):
    assert close_enough_to_best(cost, 1000.0, hold) is goes


def test_milliseconds_are_not_worth_a_wait():
    assert close_enough_to_best(1.0 + HOLD_MS, 1.0, 0.1)
    assert not close_enough_to_best(1.1 + HOLD_MS, 1.0, 0.1)
