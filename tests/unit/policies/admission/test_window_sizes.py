"""How wide the dispatch windows are, and what a prompt takes of them."""

import pytest

from policies.admission.dispatch_window import DispatchWindow
from policies.admission.search_bounds import passed_over_max
from policies.admission.waiting_bounds import NONE_WAITING, WaitingTotals
from policies.admission.window_room import fits_window
from policies.admission.window_sizes import window_for_targets


def window_of(targets, ms_per_token=0.02, *, contended=False, flood=NONE_WAITING, workers=0):
    return window_for_targets(
        targets,
        contended=contended,
        ms_per_token=ms_per_token,
        tokens_max=16_384,
        batch_seconds=2.0,
        flood=flood,
        workers=workers,
    )


def test_while_all_requests_are_of_one_class_a_prompt_takes_space_of_the_narrow_window_alone():
    window = window_of({0.5}, contended=True)
    assert window.taken_by(12_000, is_narrow=False) == 1
    assert window.taken_by(12_000, is_narrow=True) == 12_000


@pytest.mark.parametrize(
    ("prompt", "ahead_max"), [(16_384, 16_383), (16_385, 16_383), (16_886, 15_882), (32_768, 0), (48_000, 0)]
)
def test_a_prompt_longer_than_the_window_may_start_where_it_ends_within_two_windows(prompt, ahead_max):
    taken = window_of({0.5}).taken_by(prompt, is_narrow=False)
    assert fits_window(ahead_max, taken, 16_384)
    assert not fits_window(ahead_max + 1, taken, 16_384)


def test_while_several_classes_come_a_prompt_takes_space_of_the_wide_window_too():
    assert window_of({0.5, 0.15}).taken_by(12_000, is_narrow=False) == 12_000


def test_beside_a_crowd_a_prompt_is_long_that_exceeds_what_may_be_ahead_of_other_tenants():
    window = window_of({0.5}, contended=True)
    assert window.narrow < window.wide
    assert not window.is_long(window.wide, window.narrow)
    assert window.is_long(window.wide + 1, window.narrow)


def test_while_several_classes_come_a_prompt_is_long_that_exceeds_its_own_window():
    window = window_of({0.5, 0.15})
    assert not window.is_long(window.narrow, window.narrow)
    assert window.is_long(window.narrow + 1, window.narrow)


def test_a_slow_worker_is_sent_at_least_something():
    window = window_of({0.15, 2.0}, ms_per_token=1000.0)
    assert (window.narrow, window.wide) == (1, 1)


@pytest.mark.parametrize("targets", [(), (0.15,), (2.0,)])
def test_requests_of_one_class_need_no_protection(targets):
    found = window_of(targets)
    assert found == DispatchWindow(narrow=16_384, wide=16_384, passed_over_max=found.passed_over_max)


def test_the_tightest_of_several_classes_decides():
    window = window_of({0.15, 0.5, 2.0})
    assert (window.narrow, window.wide, window.open, window.contended) == (2250, 4500, 1125, False)


def test_a_tenant_that_waits_beside_one_that_does_not_is_held_to_the_target_of_their_class():
    window = window_of({0.5}, contended=True)
    assert (window.narrow, window.wide, window.open, window.contended) == (5000, 15_000, 2500, True)


def test_batch_work_of_several_tenants_leaves_no_worker_open():
    assert window_of({2.0}, contended=True).open is None


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
    assert window_of((1.0, 5.0), workers=workers).passed_over_max == passed_over


@pytest.mark.parametrize(("workers", "passed_over"), [(4, 128), (32, 128), (33, 16), (1600, 100)])
def test_many_are_passed_over_in_a_small_fleet_while_requests_wait_for_workers_of_their_own(
    workers, passed_over
):
    assert window_of((1.0,), workers=workers).passed_over_max == passed_over
    assert window_of((1.0,), workers=workers, contended=True).passed_over_max == passed_over_max(workers)
