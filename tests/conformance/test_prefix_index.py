"""What every PrefixIndex promises."""

from array import array

import pytest

from radix_cache.local_index import LocalIndex
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from tests.fakes.clock import FakeClock

SPACE = Namespace(model="m", block_size=16)
W, V = WorkerId("w"), WorkerId("v")


def path(*names: int) -> "array[int]":
    return array("Q", [sum(names[: end + 1]) * 1000 + names[end] for end in range(len(names))])


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["local"])
def index(request, clock):
    return LocalIndex(clock, blocks_max=1000, predicted_seconds=10, idle_seconds_max=100, predictions_max=4)


def test_nothing_matches_in_an_empty_index(index):
    match = index.match(SPACE, path(1, 2, 3))
    assert (match.confirmed, match.pending) == ({}, {})
    assert match.blocks(W) == 0


def test_a_dispatched_path_is_pending_at_once(index):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    match = index.match(SPACE, path(1, 2, 9))
    assert (match.confirmed, match.pending) == ({}, {W: 2})
    assert match.blocks(W) == 2


def test_a_confirmed_path_is_confirmed_and_no_longer_pending(index):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    index.confirm(SPACE, path(1, 2, 3), W, "r1")
    match = index.match(SPACE, path(1, 2, 3))
    assert (match.confirmed, match.pending) == ({W: 3}, {})


def test_only_the_writer_withdraws_a_prediction(index):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    index.record(SPACE, path(1, 2), W, "r2")
    index.withdraw(W, "r2")
    index.withdraw(W, "nobody")
    assert index.match(SPACE, path(1, 2, 3)).pending == {W: 3}
    index.withdraw(W, "r1")
    assert index.match(SPACE, path(1, 2, 3)).pending == {}


def test_the_deepest_prediction_counts(index):
    index.record(SPACE, path(1, 2), W, "r1")
    index.record(SPACE, path(1, 2, 3), W, "r2")
    index.record(SPACE, path(1), V, "r3")
    assert index.match(SPACE, path(1, 2, 3)).pending == {W: 3, V: 1}


def test_predictions_expire_each_in_its_time(index, clock):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    clock.advance(6)
    index.record(SPACE, path(1, 2), W, "r2")
    clock.advance(4)
    assert index.match(SPACE, path(1, 2, 3)).pending == {W: 2}
    clock.advance(6)
    assert index.match(SPACE, path(1, 2, 3)).pending == {}


def test_a_confirmed_path_does_not_expire_with_its_prediction(index, clock):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    index.confirm(SPACE, path(1, 2, 3), W, "r1")
    clock.advance(11)
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 3}


def test_predictions_are_bounded_and_the_oldest_gives_way(index):
    for number in range(5):
        index.record(SPACE, path(number, number), W, f"r{number}")
    assert index.stats().predictions == 4
    assert index.match(SPACE, path(0, 0)).pending == {}
    assert index.match(SPACE, path(4, 4)).pending == {W: 2}


def test_shortening_leaves_the_beginning(index):
    index.confirm(SPACE, path(1, 2, 3), W, "r1")
    index.shorten(SPACE, path(1, 2, 3), W, 1)
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 1}


def test_forgetting_a_worker_forgets_its_predictions_too(index):
    index.confirm(SPACE, path(1, 2, 3), W, "r1")
    index.record(SPACE, path(7, 8), W, "r2")
    index.confirm(SPACE, path(1, 2, 3), V, "r3")
    index.forget(W)
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {V: 3}
    assert index.match(SPACE, path(7, 8)).pending == {}


def test_a_bounded_worker_keeps_what_it_used_last(index):
    index.bound(W, 3)
    index.confirm(SPACE, path(1, 2), W, "r1")
    index.confirm(SPACE, path(5, 6), W, "r2")
    assert index.match(SPACE, path(5, 6)).confirmed == {W: 2}
    assert index.match(SPACE, path(1, 2)).confirmed == {W: 1}


def test_a_bound_also_cuts_what_is_there(index):
    index.confirm(SPACE, path(1, 2, 3), W, "r1")
    index.bound(W, 2)
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 2}


def test_unused_blocks_are_forgotten(index, clock):
    index.confirm(SPACE, path(1, 2), W, "r1")
    clock.advance(101)
    index.confirm(SPACE, path(5, 6), W, "r2")
    assert index.match(SPACE, path(1, 2)).confirmed == {}


def test_the_whole_index_is_bounded(clock):
    index = LocalIndex(clock, blocks_max=4, predicted_seconds=10, idle_seconds_max=100)
    index.confirm(SPACE, path(1, 2, 3), W, "r1")
    clock.advance(1)
    index.confirm(SPACE, path(5, 6, 7), V, "r2")
    assert index.stats().blocks == 4
    assert index.match(SPACE, path(5, 6, 7)).confirmed == {V: 3}


def test_an_empty_path_is_no_error(index):
    index.record(SPACE, path(), W, "r1")
    index.confirm(SPACE, path(), W, "r1")
    index.shorten(SPACE, path(), W, 0)
    assert index.match(SPACE, path()).confirmed == {}
