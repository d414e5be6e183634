"""What became of the requests, and the figures that everybody in the field asks for.

TTFT: arrival at the gateway to first token. TPOT: (last - first) / (output tokens - 1). Goodput: the share of
requests with TTFT <= 2 s and TPOT <= 60 ms. Hit ratio: cached prompt tokens of all prompt tokens. Imbalance:
the prompt tokens that the busiest worker computed, over the mean of all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

TTFT_SECONDS_OBJECTIVE = 2.0
TPOT_SECONDS_OBJECTIVE = 0.060


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One request. Times are seconds; None: it did not come so far. `error`: a code. `worker`: its place in the
    fleet, the last one that it was sent to; `attempts`: how many it was sent to."""

    tenant: str
    arrived_at: float
    prompt_tokens: int
    output_tokens: int
    first_at: float | None = None
    last_at: float | None = None
    cached_tokens: int = 0
    worker: int | None = None
    attempts: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return None if self.first_at is None else self.first_at - self.arrived_at

    @property
    def tpot(self) -> float | None:
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def good(self) -> bool:
        ttft, tpot = self.ttft, self.tpot
        return (
            self.error is None
            and ttft is not None
            and ttft <= TTFT_SECONDS_OBJECTIVE
            and (tpot is None or tpot <= TPOT_SECONDS_OBJECTIVE)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One policy over one trace with one seed. `computed_tokens`, `busy_seconds`: by worker.
    `predicted_tokens`: what the chosen routes promised as cached."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    computed_tokens: tuple[int, ...]
    busy_seconds: tuple[float, ...]
    predicted_tokens: int = 0


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of some requests; None where there is nothing to measure."""
    answered = [outcome for outcome in outcomes if outcome.error is None]
    ttft = sorted(1000 * outcome.ttft for outcome in answered if outcome.ttft is not None)
    tpot = sorted(1000 * outcome.tpot for outcome in answered if outcome.tpot is not None)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in answered)
    cached_tokens = sum(outcome.cached_tokens for outcome in answered)
    return {
        "requests": len(outcomes),
        "errors": len(outcomes) - len(answered),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "output_tokens": sum(outcome.output_tokens for outcome in answered),
        "hit_ratio": cached_tokens / prompt_tokens if prompt_tokens else None,
        "ttft_ms_mean": _mean(ttft),
        **{f"ttft_ms_p{percent}": _percentile(ttft, percent) for percent in (50, 90, 99)},
        "tpot_ms_mean": _mean(tpot),
        "tpot_ms_p90": _percentile(tpot, 90),
        "goodput": sum(outcome.good for outcome in outcomes) / len(outcomes) if outcomes else None,
    }


def figures(result: RunResult) -> dict[str, Any]:
    """`{"all": ..., "tenants": {...}}`, as in every result file."""
    tenants: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes:
        tenants.setdefault(outcome.tenant, []).append(outcome)
    whole = summary(result.outcomes) | {
        "imbalance": imbalance(result.computed_tokens),
        "busy": sum(result.busy_seconds) / len(result.busy_seconds) / result.seconds
        if result.seconds
        else None,
        "retries": sum(max(0, outcome.attempts - 1) for outcome in result.outcomes),
        "seconds": result.seconds,
    }
    return {
        "all": whole,
        "tenants": {name: summary(of) for name, of in sorted(tenants.items())} if len(tenants) > 1 else {},
    }


def averaged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of the same figures of several seeds. Who sent nothing with one of them had no requests then."""
    nothing = summary(())
    tenants = sorted({name for run in runs for name in run["tenants"]})
    return {
        "all": _averaged([run["all"] for run in runs]),
        "tenants": {name: _averaged([run["tenants"].get(name, nothing) for run in runs]) for name in tenants},
    }


def imbalance(work: Iterable[float]) -> float | None:
    """The most that anybody did, over the mean."""
    each = list(work)
    return max(each) * len(each) / sum(each) if sum(each) else None


def _averaged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: _mean([run[name] for run in runs if run[name] is not None]) for name in runs[0]}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Nearest rank: the smallest value that so many percent of all values do not exceed."""
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)] if ordered else None
