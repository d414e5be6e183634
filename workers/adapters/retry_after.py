"""The Retry-After header (RFC 9110, 10.2.3): how long a busy worker asks to be left alone.

The header has a number of seconds, or a date. A date is measured from the answer's own `Date` header: both are by
the worker's clock, whatever the gateway's says.
"""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,6})?")
"""Some servers send fractions."""

SECONDS_MAX = 99_999.0
"""A longer time is taken for a mistake and ignored."""


def retry_after_seconds(value: str, date: str, now: float) -> float | None:
    """Return the seconds that a Retry-After value asks for; None if it cannot be read.

    `date` is the answer's Date header, or empty; `now` is the gateway's Unix time.
    """
    if _SECONDS.fullmatch(value):
        return float(value)
    until = _unix_time(value)
    if until is None:
        return None
    sent = _unix_time(date)
    seconds = max(0.0, until - (sent if sent is not None else now))
    return seconds if seconds <= SECONDS_MAX else None


def _unix_time(date: str) -> float | None:
    """Return the Unix time of any of HTTP's three date formats, which are always in GMT; None if it is none."""
    try:
        return parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
