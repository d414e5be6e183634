"""What clients are told of their limits, in the header names of OpenAI and of Anthropic; all of it true.

Of each kind of limit the one is told of which the smallest share is left; on a refusal the one that refused. Only
limits that are enforced are told. `x-radixgate-limit` names the one that refused: scope; unit/window/models.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil
from urllib.parse import quote

from gateway.quotas.limit import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKEN_UNITS
from gateway.quotas.quota import Refusal, Standing

OPENAI_KINDS = {"requests": (REQUESTS,), "tokens": TOKEN_UNITS}
ANTHROPIC_KINDS = {
    "requests": (REQUESTS,),
    "tokens": TOKEN_UNITS,
    "input-tokens": (INPUT_TOKENS,),
    "output-tokens": (OUTPUT_TOKENS,),
}
READABLE = " /:*?[]()!;,._-"


def openai_headers(standings: Sequence[Standing], refusal: Refusal | None = None) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; resets are durations, as 6m0s."""
    headers = {}
    for kind, standing in _told(standings, OPENAI_KINDS, refusal).items():
        headers[f"x-ratelimit-limit-{kind}"] = str(standing.amount)
        headers[f"x-ratelimit-remaining-{kind}"] = str(standing.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = duration(standing.reset_seconds)
    return {**headers, **_refused_by(refusal)}


def anthropic_headers(
    standings: Sequence[Standing], wall: float, refusal: Refusal | None = None
) -> dict[str, str]:
    """`anthropic-ratelimit-{requests,tokens,...}-{limit,remaining,reset}`; resets are moments of RFC 3339.

    `wall`: Unix time now.
    """
    headers = {}
    for kind, standing in _told(standings, ANTHROPIC_KINDS, refusal).items():
        reset = datetime.fromtimestamp(ceil(wall + standing.reset_seconds), UTC)
        headers[f"anthropic-ratelimit-{kind}-limit"] = str(standing.amount)
        headers[f"anthropic-ratelimit-{kind}-remaining"] = str(standing.remaining)
        headers[f"anthropic-ratelimit-{kind}-reset"] = reset.isoformat().replace("+00:00", "Z")
    return {**headers, **_refused_by(refusal)}


def duration(seconds: float) -> str:
    """As OpenAI writes durations: 12ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


def _told(
    standings: Sequence[Standing], kinds: Mapping[str, Collection[str]], refusal: Refusal | None
) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for standing in standings:
        if not standing.limit.enforced:
            continue
        said_no = _is_of(standing, refusal)
        for kind, units in kinds.items():
            if standing.unit in units:
                known = found.get(kind)
                less = known is None or standing.remaining * known.amount < known.remaining * standing.amount
                if said_no or (less and not _is_of(known, refusal)):
                    found[kind] = standing
    return found


def _is_of(standing: Standing | None, refusal: Refusal | None) -> bool:
    if standing is None or refusal is None:
        return False
    return (standing.scope, standing.limit) == (refusal.scope, refusal.limit)


def _refused_by(refusal: Refusal | None) -> dict[str, str]:
    if refusal is None:
        return {}
    return {"x-radixgate-limit": quote(f"{refusal.scope}; {refusal.limit.name}", safe=READABLE)}
