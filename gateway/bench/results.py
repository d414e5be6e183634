"""The results of a benchmark: a RequestResult per request, and the usual statistics of all requests.

TTFT: from sending the request to the first output byte. ITL: the gap between two chunks. TPOT: (last - first) /
(output tokens - 1), one number per request. Hit ratio: the share of prompt tokens that were cached, as the worker
reports them. Goodput: requests per second, and share of requests, that met all objectives (by default TTFT <= 2 s
and TPOT <= 60 ms).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyObjectives:
    """The latencies that a good answer must not exceed."""

    ttft_seconds: float = 2.0
    tpot_seconds: float = 0.060


def default_objectives(tenant: str) -> LatencyObjectives:
    """Return the default objectives, which are the same for every tenant."""
    return DEFAULT_OBJECTIVES


DEFAULT_OBJECTIVES = LatencyObjectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One measured request. All times are seconds on one clock."""

    tenant: str
    sent_at: float
    first_at: float | None = None
    last_at: float | None = None
    gaps: tuple[float, ...] = ()
    """Seconds between chunks."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    possible_tokens: int = 0
    """Prompt tokens that an unlimited cache of this tenant would have had."""

    output_tokens: int = 0
    error: str | None = None
    """Code of the error; None if the request was answered."""

    text: str = ""

    @property
    def ttft(self) -> float | None:
        """Time to the first token, in seconds."""
        return self.first_at - self.sent_at if self.first_at is not None else None

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first, in seconds; None with fewer than two tokens."""
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def e2e(self) -> float | None:
        """Time from sending the request to the last output byte, in seconds."""
        return self.last_at - self.sent_at if self.last_at is not None else None

    def meets(self, objectives: LatencyObjectives) -> bool:
        """Return whether the request was answered within all objectives; a single token has no TPOT."""
        ttft, tpot = self.ttft, self.tpot
        return (
            self.error is None
            and ttft is not None
            and ttft <= objectives.ttft_seconds
            and (tpot is None or tpot <= objectives.tpot_seconds)
        )


def summary(
    results: Sequence[RequestResult],
    seconds: float,
    objectives: Callable[[str], LatencyObjectives] = default_objectives,
) -> dict[str, Any]:
    """Return statistics of requests; a value is None if there is nothing to measure.

    Args:
        results: the requests.
        seconds: duration in which all of them ran.
        objectives: returns the objectives of a tenant.
    """
    answered = [result for result in results if result.error is None]
    good = sum(result.meets(objectives(result.tenant)) for result in results)
    e2e = [1000 * result.e2e for result in answered if result.e2e is not None]
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
        "errors_by_code": dict(Counter(result.error for result in results if result.error is not None)),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "output_tokens": output_tokens,
        "hit_ratio": cached_tokens / prompt_tokens if prompt_tokens else None,
        "possible_hit_ratio": possible_tokens / prompt_tokens if prompt_tokens else None,
        "ttft_ms_mean": sum(ttft) / len(ttft) if ttft else None,
        **_percentiles("ttft_ms", ttft, 50, 90, 95, 99),
        **_percentiles("tpot_ms", tpot, 50, 90, 99),
        **_percentiles("itl_ms", gaps, 50, 95, 99),
        **_percentiles("e2e_ms", e2e, 50, 90, 99),
        "tokens_per_second": output_tokens / seconds if seconds else None,
        "goodput": good / len(results) if results else None,
        "goodput_requests_per_second": good / seconds if seconds else None,
        "seconds": seconds,
    }


def summary_by_tenant(
    results: Sequence[RequestResult],
    seconds: float,
    objectives: Callable[[str], LatencyObjectives] = default_objectives,
) -> dict[str, Any]:
    """Return statistics of all requests and of each tenant: `{"all": ..., "tenants": {...}}`."""
    tenants: dict[str, list[RequestResult]] = {}
    for result in results:
        tenants.setdefault(result.tenant, []).append(result)
    return {
        "all": summary(results, seconds, objectives),
        "tenants": {tenant: summary(of, seconds, objectives) for tenant, of in sorted(tenants.items())},
    }


def _percentiles(name: str, values: Sequence[float], *percents: float) -> dict[str, float | None]:
    ordered = sorted(values)
    return {f"{name}_p{percent:g}": percentile(ordered, percent) for percent in percents}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that `percent` percent of all values do not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]
