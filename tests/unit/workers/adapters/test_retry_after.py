"""What a worker says in Retry-After, in all forms that HTTP has for it."""

import pytest

from workers.adapters.retry_after import retry_after_seconds

NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110
SENT = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    "said",
    ["Sun, 06 Nov 1994 08:50:07 GMT", "Sunday, 06-Nov-94 08:50:07 GMT", "Sun Nov  6 08:50:07 1994"],
    ids=["today's", "RFC 850", "asctime"],
)
@pytest.mark.parametrize(
    ("date", "now"), [(SENT, 0.0), ("", NOW), ("no date", NOW)], ids=["its clock", "ours", "ours for junk"]
)
def test_a_date_is_measured_from_the_answers_own(said, date, now):
    assert retry_after_seconds(said, date, now) == 30.0


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("1.5", 1.5),
        ("99999", 99999.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0.0),
        ("", None),
        ("-1", None),
        ("1e9", None),
        ("100000", None),
        ("soon", None),
        ("Sun, 06 Nov 9999 08:49:00 GMT", None),
        ("Sun, 99 Nov 1994 99:99:99 GMT", None),
        ("Sun, 06 Nov 99999999999 08:49:37 GMT", None),
        (", , ,", None),
        ("Sun, 06 Nov 1994 08:50:07 +0100", 30.0),
    ],
    ids=[
        *("none", "seconds", "a fraction", "the most", "past", "empty", "negative", "exponent", "too many"),
        *("a word", "far away", "no such day", "no such year", "commas", "a zone that HTTP has not"),
    ],
)
def test_retry_after_is_read_in_every_format_or_ignored(said, seconds):
    assert retry_after_seconds(said, SENT, NOW) == seconds
