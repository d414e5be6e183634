"""The dispatch window of a worker, and when a waiting request is worth ranking again."""

import pytest

from policies.admission.dispatch_window import (
    HOLD_MS,
    ClosedWorkers,
    DispatchWindow,
    close_enough_to_best,
    dispatch_window,
    fits_window,
    leaves_one_open,
    passed_over_max,
    worth_ranking_again,
)
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals


def window_of(targets, ms_per_token=0.02, *, contended=False, flood=NONE_WAITING, workers=0):
    return dispatch_window(
        targets,
        contended=contended,
        ms_per_token=ms_per_token,
        tokens_max=16_384,
        batch_seconds=2.0,
        flood=flood,
        workers=workers,
    )


def test_an_idle_worker_takes_any_prompt():
    assert fits_window(0, 1_000_000, 16384)


def test_a_worker_with_nothing_but_work_of_other_cells_takes_any_prompt():
    assert fits_window(20_000, 1_000_000, 16384, of_other_cells=20_000)
    assert not fits_window(20_001, 1, 16384, of_other_cells=20_000)


@pytest.mark.parametrize(
    ("queued", "own", "fits"), [(100, 16284, True), (100, 16285, False), (16384, 1, False)]
)
def test_the_window_is_exact(queued, own, fits):
    assert fits_window(queued, own, 16384) is fits


def test_while_all_requests_are_of_one_class_a_prompt_takes_space_of_the_narrow_window_alone():
    window = window_of({0.5}, contended=True)
    assert window.taken_by(12_000, is_narrow=False) == 1
    assert window.taken_by(12_000, is_narrow=True) == 12_000


def test_a_prompt_longer_than_the_wide_window_takes_space_for_all_of_it():
    assert window_of({0.5}).taken_by(16_384, is_narrow=False) == 1
    assert window_of({0.5}).taken_by(16_385, is_narrow=False) == 16_385


def test_while_several_classes_come_a_prompt_takes_space_of_the_wide_window_too():
    assert window_of({0.5, 0.15}).taken_by(12_000, is_narrow=False) == 12_000


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


@pytest.mark.parametrize(
    ("queued", "least", "worth"),
    [
        (0, 100_000, True),
        (16_000, 384, True),
        (16_000, 385, False),
        (15_360, 100_000, True),
        (15_361, 100_000, False),
        (16_384, 1, False),
    ],
)
def test_room_for_the_smallest_that_waits_or_for_a_part_of_a_window_is_worth_a_look(queued, least, worth):
    assert worth_ranking_again(queued, least, 16_384) is worth


def test_room_in_a_narrow_window_is_worth_a_look_before_its_worker_is_idle():
    # All waiting requests had more to compute when they came, and fit now.
    assert worth_ranking_again(500, 5000, 1000)
    assert not worth_ranking_again(990, 5000, 1000)


def test_a_slow_worker_is_sent_at_least_something():
    window = window_of({0.15, 2.0}, ms_per_token=1000.0)
    assert (window.narrow, window.wide) == (1, 1)


@pytest.mark.parametrize("targets", [(), (0.15,), (2.0,)])
def test_requests_of_one_class_need_no_protection(targets):
    assert window_of(targets) == DispatchWindow(narrow=16_384, wide=16_384)


def test_the_tightest_of_several_classes_decides():
    window = window_of({0.15, 0.5, 2.0})
    assert (window.narrow, window.wide, window.open, window.contended) == (2250, 4500, 1125, False)


def test_a_tenant_that_waits_beside_one_that_does_not_is_held_to_the_target_of_their_class():
    window = window_of({0.5}, contended=True)
    assert (window.narrow, window.wide, window.open, window.contended) == (5000, 15_000, 2500, True)


def test_batch_work_of_several_tenants_leaves_no_worker_open():
    assert window_of({2.0}, contended=True).open is None


@pytest.mark.parametrize(
    ("queued", "leaves"),
    [([0], True), ([0, 0], True), ([0, 101], False), ([0, 100], True), ([0, 500, 0, 500], True)],
)
def test_a_long_batch_prompt_leaves_another_worker_open(queued, leaves):
    assert leaves_one_open(queued, 100, background=True) is leaves


@pytest.mark.parametrize(
    ("queued", "leaves"), [([0, 500], True), ([0, 500, 500], True), ([0, 500, 500, 500], False)]
)
def test_of_few_workers_other_long_prompts_take_all(queued, leaves):
    assert leaves_one_open(queued, 100, background=False) is leaves


def test_a_worker_that_a_crowding_request_waits_for_is_closed_to_crowding_requests_alone():
    closed = ClosedWorkers()
    closed.close(["a"], crowds=True)
    closed.close(["b"], crowds=False)
    open_to_others = [closed.allows(worker, crowds=False) for worker in "abc"]
    open_to_crowding = [closed.allows(worker, crowds=True) for worker in "abc"]
    assert (open_to_others, open_to_crowding) == ([True, False, True], [False, False, True])


@pytest.mark.parametrize(
    ("flood", "narrow"),
    [
        (NONE_WAITING, 5000),
        (WaitingTotals(5, 60_000), 5000),
        (WaitingTotals(20, 240_000), 2500),
        (WaitingTotals(1000, 500_000), 5000),
        (WaitingTotals(1000, 6_000_000), 3413),
    ],
    ids=["nothing waits", "little waits", "long prompts", "short prompts", "prompts between"],
)
def test_a_flood_of_long_prompts_has_half_the_window_of_one_of_short_prompts(flood, narrow):
    assert window_of({0.5}, contended=True, flood=flood).narrow == narrow


@pytest.mark.parametrize(("workers", "passed_over"), [(0, 16), (256, 16), (1600, 100), (10_000, 128)])
def test_in_a_large_fleet_more_requests_that_wait_for_their_worker_are_passed_over(workers, passed_over):
    assert passed_over_max(workers) == passed_over
    for targets in ((1.0,), (1.0, 5.0)):
        assert window_of(targets, workers=workers).passed_over_max == passed_over
