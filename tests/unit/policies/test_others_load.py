"""The estimate of what other gateways have sent: late reports, and what is told since."""

import pytest

from policies.others_load import NO_TOTALS, LoadTotals, OthersLoad


@pytest.fixture
def load():
    return OthersLoad()


def dispatch(load, key, sent_at, ready_at=1e9):
    load.dispatched(key, uncached_tokens=100, kv_tokens=1000, sent_at=sent_at, ready_at=ready_at)


def test_a_dispatch_counts_once_whether_it_is_announced_before_or_after_its_report(load):
    dispatch(load, "early", 1.0)
    assert load.totals == LoadTotals(100, 1, 1000)
    load.report(LoadTotals(200, 2, 2000), as_of=2.0)
    dispatch(load, "late", 1.5)
    assert load.totals == LoadTotals(200, 2, 2000)
    dispatch(load, "new", 2.5)
    assert load.totals == LoadTotals(300, 3, 3000)


def test_an_end_that_no_report_has_yet_is_taken_off_once(load):
    dispatch(load, "a", 1.0)
    load.report(LoadTotals(0, 1, 1000), as_of=2.0)
    load.ended("a", 3.0)
    assert load.totals == NO_TOTALS
    load.report(NO_TOTALS, as_of=4.0)
    assert load.totals == NO_TOTALS
    load.ended("a", 5.0)
    load.ended("never told", 5.0)
    assert load.totals == NO_TOTALS


def test_a_prompt_that_must_have_been_computed_is_queued_no_longer_and_its_stream_goes_on(load):
    dispatch(load, "a", 1.0, ready_at=2.0)
    load.take_off_computed(1.9)
    assert load.totals.tokens_queued == 100
    load.take_off_computed(2.0)
    assert load.totals == LoadTotals(0, 1, 1000)
    load.ended("a", 9.0)
    assert load.totals == NO_TOTALS


def test_a_prompt_that_is_announced_as_computed_is_queued_no_longer(load):
    dispatch(load, "a", 1.0)
    load.computed("a", 1.5)
    load.computed("a", 1.6)
    load.computed("never told", 1.5)
    assert load.totals == LoadTotals(0, 1, 1000)


@pytest.mark.parametrize("told_first", [False, True])
def test_a_computed_prompt_is_taken_off_a_report_of_an_earlier_moment_once(load, told_first):
    dispatch(load, "a", 1.0)
    dispatch(load, "b", 1.1)
    if told_first:
        load.computed("a", 3.0)
    load.report(LoadTotals(200, 2, 2000), as_of=2.0)
    if not told_first:
        load.computed("a", 3.0)
    assert load.totals == LoadTotals(100, 2, 2000)
    load.ended("a", 3.5)
    assert load.totals == LoadTotals(100, 1, 1000)
    load.report(LoadTotals(100, 2, 2000), as_of=3.2)
    assert load.totals == LoadTotals(100, 1, 1000)


def test_a_computed_prompt_is_not_taken_off_a_report_of_a_later_moment(load):
    dispatch(load, "a", 1.0)
    load.report(LoadTotals(0, 1, 1000), as_of=2.0)
    load.computed("a", 1.5)
    assert load.totals == LoadTotals(0, 1, 1000)
