"""Limits, their scopes and waiting times in words, for error messages."""

from math import ceil

from gateway.quotas.limit import CONCURRENCY, SPEND, Limit
from gateway.quotas.prices import MILLION

FRACTIONS_SECONDS = 10.0
"""Shorter times are given with fractions of a second."""
LENGTHS = (("day", 86400), ("hour", 3600), ("minute", 60))


def limit_in_words(limit: Limit) -> str:
    """Return a limit as text.

    Examples: 2 total tokens per minute; 1 request at one time; 20.5 of spend per calendar month for the models
    qwen*.
    """
    many = "" if limit.amount == 1 else "s"
    if limit.unit == CONCURRENCY:
        text = f"{limit.amount} request{many} at one time"
    else:
        unit = f"{limit.unit.removesuffix('s').replace('_', ' ')}{many}"
        amount = (
            f"{limit.amount / MILLION:.10g} of spend" if limit.unit == SPEND else f"{limit.amount} {unit}"
        )
        text = f"{amount} per {limit.window.name}"
    return text + (f" for the models {', '.join(limit.models)}" if limit.models else "")


def scope_in_words(scope: str) -> str:
    """Return a scope's name as text, for example tenant 'acme'."""
    kind, _, name = scope.partition(":")
    return f"{kind} {name!r}"


def short_time(seconds: float) -> str:
    """Return a time as text, with fractions of a second if it is short."""
    if seconds >= FRACTIONS_SECONDS:
        return whole_time(seconds)
    text = f"{seconds:.3g}"
    return f"{text} second{'' if text == '1' else 's'}"


def whole_time(seconds: float) -> str:
    """Return a time as text in whole units, rounded up: 12 seconds, 5 minutes, 3 hours, 2 days."""
    for name, length in LENGTHS:
        if seconds > 2 * length:
            return f"{ceil(seconds / length)} {name}s"
    return f"{ceil(seconds)} second{'' if ceil(seconds) == 1 else 's'}"
