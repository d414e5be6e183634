"""The order of an engine's batches: gaps, losses, restarts, and batches that come twice."""

import pytest

from radix_cache.events import EventBatch
from workers.kv_events.batch_order import BatchOrder, FeedNotice


def batch(sequence, at=None):
    return EventBatch(sequence=sequence, events=(), at=float(sequence) if at is None else at)


@pytest.fixture
def order():
    """Return the order after batches 0 to 2 were passed on."""
    order = BatchOrder()
    order.take_kept([batch(0), batch(1), batch(2)], None)
    return order


def test_a_live_batch_that_the_first_replay_brought_is_a_repetition(order):
    assert order.repeats(batch(2))
    assert not order.repeats(batch(3))
    assert not order.repeats(batch(2)), "live batches are in order from the first new one on"


def test_a_gap_is_filled_with_the_kept_batches_before_the_live_one(order):
    kept = [batch(2), batch(3), batch(4), batch(5)]
    assert [item.sequence for item in order.take_kept(kept, until=5)] == [3, 4]
    assert order.expected == 5


def test_batches_that_are_not_kept_any_more_are_lost(order):
    lost, first = order.take_kept([batch(7)], until=8)
    assert (lost, first.sequence) == (FeedNotice.LOST, 7)


def test_a_hole_among_the_batches_kept_at_the_start_is_no_loss_yet():
    order = BatchOrder()
    assert [item.sequence for item in order.take_kept([batch(4), batch(6)], None)] == [4]


@pytest.mark.parametrize(
    ("kept", "restarted"), [([batch(2)], False), ([batch(2, at=9.0)], True), ([], False)]
)
def test_another_batch_under_the_last_number_shows_a_restart(order, kept, restarted):
    assert order.shows_restart(kept) is restarted
