"""What came of a load: one Result per request, and the figures that everybody in the field asks for.

TTFT: sent to first output byte. ITL: each gap between chunks. TPOT: (last - first) / (output tokens - 1), one
number per request. Hit ratio: cached prompt tokens, as the worker reports them, of all. Goodput: requests per
second that met all objectives (TTFT <= 2 s and TPOT <= 60 ms unless told otherwise).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

TTFT_SECONDS_OBJECTIVE = 2.0
TPOT_SECONDS_OBJECTIVE = 0.060


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request. Times are seconds on one clock; `gaps` are seconds between chunks. `error` is a code, or None.

    `possible_tokens`: prompt tokens that an endless cache of this tenant could have held.
    """

    tenant: str
    sent_at: float
    first_at: float | None = None
    last_at: float | None = None
    gaps: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    possible_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    text: str = ""

    @property
    def ttft(self) -> float | None:
        return self.first_at - self.sent_at if self.first_at is not None else None

    @property
    def tpot(self) -> float | None:
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def good(self) -> bool:
        """Answered, and within all objectives. An answer of one token has no TPOT to miss."""
        ttft, tpot = self.ttft, self.tpot
        return (
            self.error is None
            and ttft is not None
            and ttft <= TTFT_SECONDS_OBJECTIVE
            and (tpot is None or tpot <= TPOT_SECONDS_OBJECTIVE)
        )


def summary(results: Sequence[Result], seconds: float) -> dict[str, float | int | None]:
    """The figures of some requests that ran within `seconds`; None where there is nothing to measure."""
    answered = [result for result in results if result.error is None]
    ttft = [1000 * result.ttft for result in answered if result.ttft is not None]
    tpot = [1000 * result.tpot for result in answered if result.tpot is not None]
    gaps = [1000 * gap for result in answered for gap in result.gaps]
    prompt_tokens = sum(result.prompt_tokens for result in answered)
    cached_tokens = sum(result.cached_tokens for result in answered)
    possible_tokens = sum(result.possible_tokens for result in answered)
    output_tokens = sum(result.output_tokens for result in answered)
    return {
        "requests": len(results),
        "errors": len(results) - len(answered),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "output_tokens": output_tokens,
        "hit_ratio": cached_tokens / prompt_tokens if prompt_tokens else None,
        "possible_hit_ratio": possible_tokens / prompt_tokens if prompt_tokens else None,
        "ttft_ms_p50": percentile(ttft, 50),
        "ttft_ms_p95": percentile(ttft, 95),
        "tpot_ms_p50": percentile(tpot, 50),
        "itl_ms_p50": percentile(gaps, 50),
        "itl_ms_p95": percentile(gaps, 95),
        "tokens_per_second": output_tokens / seconds if seconds else None,
        "goodput_requests_per_second": sum(result.good for result in results) / seconds if seconds else None,
        "seconds": seconds,
    }


def by_tenant(results: Sequence[Result], seconds: float) -> dict[str, object]:
    """`{"all": ..., "tenants": {...}}`, as in every result file."""
    tenants = sorted({result.tenant for result in results})
    return {
        "all": summary(results, seconds),
        "tenants": {
            tenant: summary([result for result in results if result.tenant == tenant], seconds)
            for tenant in tenants
        },
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest rank: the smallest value that so many percent of all values do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]
