"""Whether a worker has room in its window, and when waiting requests are worth ranking again."""

import pytest

from policies.admission.window_room import fits_window, leaves_one_open, worth_ranking_again


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
