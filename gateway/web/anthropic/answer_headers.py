"""Headers of answers under the names of Anthropic's API, with resets of limits as points in time."""

import re
from datetime import UTC, datetime, timedelta

RATE_LIMIT_HEADERS = {
    f"x-ratelimit-{what}-{kind}": f"anthropic-ratelimit-{kind}-{what}"
    for what in ("limit", "remaining", "reset")
    for kind in ("requests", "tokens")
}
_DURATION_PART = re.compile(r"([0-9.]+)(ms|[smhd])")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def anthropic_headers(headers: dict[str, str], now: datetime) -> dict[str, str]:
    """Return OpenAI's headers under Anthropic's names: `request-id`, and resets as points in time (RFC 3339)."""
    renamed = {RATE_LIMIT_HEADERS.get(name, name): value for name, value in headers.items()}
    for name, value in renamed.items():
        if name.startswith("anthropic-ratelimit") and name.endswith("-reset"):
            renamed[name] = rfc3339(now + timedelta(seconds=duration_seconds(value)))
    renamed.pop("openai-processing-ms", None)
    if "x-request-id" in renamed:
        renamed["request-id"] = renamed["x-request-id"]
    return renamed


def duration_seconds(duration: str) -> float:
    """Return the seconds of a duration such as 12ms, 1.5s or 6m0s."""
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))


def rfc3339(when: datetime) -> str:
    """Return a point in time as RFC 3339 writes it, in UTC and to the millisecond."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
