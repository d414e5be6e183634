"""Parses users' queries of the ledger to a UsageQuery, and turns its answer into JSON."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.database.usage_query import GROUPS_MAX, PAGE, ROW_COLUMNS, TAG, TIMES, UsageQuery
from gateway.ledger.attribution import NAME_MAX
from gateway.settings.types import Moment

FOR_TENANTS = ("key", "model", "user", "code")
"""The dimensions of tenants' own queries; without `worker`, which tenants are not shown."""

BY_MAX = 6
TEXT_MAX = 600


class QueryProblem(Exception):
    """A parameter of a query is wrong; `param` is its name."""

    def __init__(self, param: str, text: str) -> None:
        super().__init__(f"{param}: {text}")
        self.param = param


def parse_query(
    given: Iterable[tuple[str, str]],
    *,
    names: Sequence[str] = tuple(ROW_COLUMNS),
    limit_max: int = GROUPS_MAX,
) -> UsageQuery:
    """Return the query of these parameters: `since`, `until`, `by`, `tag`, `limit`, `offset`, and those of `names`.

    Raises QueryProblem.
    """
    where: dict[str, str] = {}
    tags: dict[str, str] = {}
    more: dict[str, Any] = {}
    for name, text in given:
        if len(text) > TEXT_MAX or "\x00" in text:
            raise QueryProblem(name, "too long, or with a NUL character")
        if name in ("since", "until"):
            more[f"{name}_ms"] = _moment(name, text)
        elif name == "by":
            more["by"] = _groups(text, names)
        elif name == "tag":
            tag, value = _tag(text)
            tags[tag] = value
        elif name in ("limit", "offset"):
            more[name] = _number(name, text, limit_max if name == "limit" else 10**9)
        elif name in names:
            where[name] = text
        else:
            raise QueryProblem(
                name, f"unknown; there are since, until, by, tag, limit, offset, {', '.join(names)}"
            )
    return UsageQuery(**{"limit": min(PAGE, limit_max), **more}, where=where, tags=tags)


def shown(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group for users: times as ISO 8601, the mean TTFT in place of its sum."""
    found = {
        name: moment_text(value) if name in TIMES else value
        for name, value in group.items()
        if name not in ("ttft_count", "ttft_ms")
    }
    count, total = group["ttft_count"], group["ttft_ms"]
    return {**found, "ttft_ms_mean": round(total / count, 1) if count else None}


def moment_text(ms: int) -> str:
    """Return a time in milliseconds since 1970 as RFC 3339, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _moment(name: str, text: str) -> int:
    """Return the milliseconds of a moment with its zone, or of a day.

    A day after `since` means its beginning, a day after `until` its end.
    """
    try:
        seconds = Moment(text).seconds
    except ValueError as err:
        raise QueryProblem(name, str(err)) from None
    if name == "since" and len(text) == len("2027-01-31"):
        seconds -= timedelta(days=1).total_seconds()
    return round(seconds * 1000)


def _groups(text: str, names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    known = (*TIMES, *names)
    for part in found:
        if part not in known and not _is_tag(part):
            raise QueryProblem("by", f"unknown: {part!r}; choose from {', '.join(known)}, tag:NAME")
    if len(found) > BY_MAX:
        raise QueryProblem("by", f"more than {BY_MAX} groupings")
    return found


def _is_tag(text: str) -> bool:
    name = text.removeprefix(TAG)
    return text.startswith(TAG) and _may_name(name)


def _may_name(name: str) -> bool:
    return 0 < len(name) <= NAME_MAX and '"' not in name and "\\" not in name


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _may_name(name):
        raise QueryProblem("tag", "expected NAME=VALUE")
    return name, value


def _number(name: str, text: str, most: int) -> int:
    least = 1 if name == "limit" else 0
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise QueryProblem(name, f"expected a whole number from {least} to {most}")
    return number
