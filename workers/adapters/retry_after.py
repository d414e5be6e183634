"""Parses the Retry-After header (RFC 9110, 10.2.3), with which a busy worker requests a pause.

The header has a number of seconds, or a date. A date is compared with the answer's own `Date` header, so that the
worker's clock need not agree with the gateway's.
"""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,6})?")
"""Some servers send fractions."""

SECONDS_MAX = 99_999.0
"""A longer time is ignored as a mistake."""


def retry_after_seconds(value: str, date: str, now: float) -> float | None:
    """Return the seconds that a Retry-After value requests; None if it is malformed.

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
    """Return the Unix time of a date in any of HTTP's three formats, always in GMT; None for other text."""
    try:
        return parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
