"""Limits, their owners and waiting times as people are told of them."""

from math import ceil

from gateway.quotas.limit import CONCURRENCY, SPEND, Limit
from gateway.quotas.prices import MILLION

PARTS_SECONDS = 10.0
LENGTHS = (("day", 86400), ("hour", 3600), ("minute", 60))


def limit_in_words(limit: Limit) -> str:
    """2 total tokens per minute, 1 request at one time, 20.5 of spend per calendar month for the models qwen*."""
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


def owner_in_words(scope: str) -> str:
    """tenant 'acme'"""
    kind, _, name = scope.partition(":")
    return f"{kind} {name!r}"


def short_time(seconds: float) -> str:
    """As whole_time, and parts of a second where that is what matters."""
    if seconds >= PARTS_SECONDS:
        return whole_time(seconds)
    text = f"{seconds:.3g}"
    return f"{text} second{'' if text == '1' else 's'}"


def whole_time(seconds: float) -> str:
    """12 seconds, 5 minutes, 3 hours, 2 days: whole ones, so that it is not too early."""
    for name, length in LENGTHS:
        if seconds > 2 * length:
            return f"{ceil(seconds / length)} {name}s"
    return f"{ceil(seconds)} second{'' if ceil(seconds) == 1 else 's'}"
