"""Rate limit headers of answers, in the names of OpenAI; gateway/web/anthropic/answers.py renames them.

Of each kind of limit the headers describe the one with the smallest share left; on a refusal, the one that refused.
Only enforced limits are described. `x-radixgate-limit` names the limit that refused: scope; unit/window/models.
"""

from collections.abc import Sequence
from math import ceil
from urllib.parse import quote

from gateway.quotas.limit import REQUESTS, TOKEN_UNITS
from gateway.quotas.quota_store import LimitStatus, Refusal

KINDS: dict[str, str] = {REQUESTS: "requests", **dict.fromkeys(TOKEN_UNITS, "tokens")}
"""The kinds of limits in headers, by the unit of a limit."""
NAMES = {
    kind: (f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
    for kind in ("requests", "tokens")
}
READABLE = " /:*?[]()!;,._-"
"""Characters of limits' names that are not escaped."""


def openai_headers(statuses: Sequence[LimitStatus], refusal: Refusal | None = None) -> dict[str, str]:
    """Return `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; resets are durations, as 6m0s."""
    headers = {}
    for kind, status in _described(statuses, refusal).items():
        limit, remaining, reset = NAMES[kind]
        headers[limit] = str(status.limit.amount)
        headers[remaining] = str(status.remaining)
        headers[reset] = duration(status.reset_seconds)
    if refusal is not None:
        headers.update(_refusing_limit(refusal))
    return headers


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: 12ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def _described(statuses: Sequence[LimitStatus], refusal: Refusal | None) -> dict[str, LimitStatus]:
    """Return the limit that the headers describe, by kind."""
    found: dict[str, LimitStatus] = {}
    refused: set[str] = set()
    for status in statuses:
        limit = status.limit
        kind = KINDS.get(limit.unit)
        if kind is None or not limit.enforced:
            continue
        known = found.get(kind)
        if refusal is not None and status.scope == refusal.scope and limit == refusal.limit:
            refused.add(kind)
            found[kind] = status
        elif kind not in refused and (
            known is None or status.remaining * known.limit.amount < known.remaining * limit.amount
        ):
            found[kind] = status
    return found


def _refusing_limit(refusal: Refusal) -> dict[str, str]:
    return {"x-radixgate-limit": quote(f"{refusal.scope}; {refusal.limit.name}", safe=READABLE)}
