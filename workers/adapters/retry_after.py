"""Retry-After (RFC 9110, 10.2.3): how long a busy worker wants to be let alone, in seconds or until a date.

A date is measured from the answer's own `Date`: both are by the worker's clock, whatever ours says.
"""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,6})?")
"""Some say fractions."""

SECONDS_MAX = 99_999.0
"""Who asks for more does not mean this."""


def seconds_of(said: str, date: str, now: float) -> float | None:
    """None where it says nothing that can be read. `date`: the answer's Date, or empty; `now`: our Unix time."""
    if _SECONDS.fullmatch(said):
        return float(said)
    until = _unix_time(said)
    if until is None:
        return None
    sent = _unix_time(date)
    seconds = max(0.0, until - (sent if sent is not None else now))
    return seconds if seconds <= SECONDS_MAX else None


def _unix_time(date: str) -> float | None:
    """Of any of HTTP's three forms of a date, which are always in GMT."""
    try:
        return parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
