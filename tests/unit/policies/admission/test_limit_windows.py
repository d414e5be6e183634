"""Windows: buckets that empty evenly, windows of the calendar, windows that begin with their first use."""

from datetime import UTC, datetime

import pytest

from policies.admission.limit_windows import Window, WindowUsage, calendar_end

MINUTE = Window.of("minute")
TEN = 10
EMPTY = WindowUsage()


def used(amount, at, window=MINUTE):
    return window.charge(window.current(EMPTY, TEN, at, at), at, amount)


def left(meter, now, window=MINUTE):
    return window.remaining(window.current(meter, TEN, now, now), TEN)


def moment(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_an_empty_bucket_takes_all_of_it_at_once_and_no_more():
    meter, now = EMPTY, 1000.0
    for remaining in reversed(range(10)):
        meter = MINUTE.current(meter, TEN, now, now)
        assert MINUTE.wait(meter, TEN, now, 1) == 0.0
        meter = MINUTE.charge(meter, now, 1)
        assert MINUTE.remaining(meter, TEN) == remaining
    assert MINUTE.wait(meter, TEN, now, 1) == pytest.approx(6.0)


def test_a_bucket_empties_evenly():
    meter = used(10, 1000.0)
    assert [left(meter, now) for now in (1006.0, 1059.0, 1060.0)] == [1, 9, 10]
    assert MINUTE.reset_seconds(meter, TEN, 1000.0) == 60.0


@pytest.mark.parametrize("reset", ["smooth", "rolling", "calendar"])
def test_a_cost_that_never_fits_is_refused_as_one(reset):
    window = Window.of("minute", reset)
    assert window.wait(EMPTY, TEN, 1000.0, 11) is None
    assert window.wait(EMPTY, TEN, 1000.0, 10) == 0.0


@pytest.mark.parametrize("amount", [3, 7, 1000, 999_983, 2**50])
@pytest.mark.parametrize("now", [0.1, 1234.567, 1.7e9 + 0.1])
def test_a_cost_of_the_whole_bucket_fits_at_any_time_of_the_clock(amount, now):
    meter = MINUTE.current(EMPTY, amount, now, now)
    assert MINUTE.wait(meter, amount, now, amount) == 0.0
    assert MINUTE.remaining(MINUTE.charge(meter, now, amount), amount) == 0


def test_a_limit_that_is_raised_has_that_much_more_left():
    meter = used(10, 1000.0)
    assert MINUTE.remaining(MINUTE.current(meter, 25, 1000.0, 1000.0), 25) == 15


def test_settling_gives_back_what_was_not_used():
    meter = used(5, 1000.0)
    receipt = MINUTE.receipt(meter, TEN, 1000.0)
    meter = MINUTE.settled(meter, TEN, 1000.0, charged=5, actual=2, receipt=receipt)
    assert MINUTE.remaining(meter, TEN) == 8


def test_what_has_run_out_of_a_bucket_is_not_given_back_at_the_cost_of_others():
    first = used(10, 1000.0)
    receipt = MINUTE.receipt(first, TEN, 1000.0)
    second = MINUTE.charge(MINUTE.current(first, TEN, 1060.0, 1060.0), 1060.0, 6)
    settled = MINUTE.settled(second, TEN, 1060.0, charged=10, actual=0, receipt=receipt)
    assert MINUTE.remaining(settled, TEN) == 4


def test_using_more_than_reserved_is_a_debt_that_is_paid_first():
    meter = used(5, 1000.0)
    meter = MINUTE.settled(meter, TEN, 1000.0, charged=5, actual=15, receipt=0.0)
    assert MINUTE.remaining(meter, TEN) == 0
    assert MINUTE.wait(meter, TEN, 1000.0, 1) == pytest.approx(36.0)


def test_a_rolling_window_begins_with_its_first_use_and_gives_all_of_it_back_at_once():
    window = Window.of("day", "rolling")
    meter = used(10, 1000.0, window)
    assert meter.mark == 1000.0 + 86400
    assert [left(meter, now, window) for now in (1000.0 + 86399, 1000.0 + 86400)] == [0, 10]
    assert window.wait(meter, TEN, 2000.0, 1) == 86400 - 1000


def test_what_was_reserved_in_a_window_that_is_over_changes_nothing_in_the_next():
    window = Window.of("day", "calendar")
    noon = moment("2026-03-31T12:00")
    first = used(10, noon, window)
    tomorrow = noon + 86400
    second = window.charge(window.current(first, TEN, tomorrow, tomorrow), tomorrow, 4)
    for actual in (0, 3, 50):
        settled = window.settled(second, TEN, tomorrow, charged=10, actual=actual, receipt=first.mark)
        assert window.remaining(settled, TEN) == 6
    same_day = window.settled(first, TEN, noon, charged=10, actual=3, receipt=first.mark)
    assert window.remaining(same_day, TEN) == 7


@pytest.mark.parametrize(
    ("period", "now", "end"),
    [
        ("minute", "2026-03-31T23:59:59", "2026-04-01T00:00"),
        ("hour", "2026-03-31T23:59:59", "2026-04-01T00:00"),
        ("day", "2028-02-28T00:00", "2028-02-29T00:00"),
        ("week", "2026-11-22T23:59:59", "2026-11-23T00:00"),
        ("week", "2026-11-23T00:00", "2026-11-30T00:00"),
        ("month", "2026-12-31T23:59:59", "2027-01-01T00:00"),
        ("month", "2028-02-01T00:00", "2028-03-01T00:00"),
        ("month", "2027-02-28T12:00", "2027-03-01T00:00"),
    ],
)
def test_windows_of_the_calendar_end_where_utc_has_them_end(period, now, end):
    assert calendar_end(period, moment(now)) == moment(end)
