"""Outcomes of requests, and the figures that are computed from them.

TTFT        time to first token: arrival at the gateway to first token
TPOT        time per output token: (last token - first token) / (output tokens - 1)
goodput     share of the requests with TTFT <= 2 s and TPOT <= 60 ms
hit ratio   cached prompt tokens over all prompt tokens
imbalance   prompt tokens that the busiest worker computed, over the mean of all workers
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

TTFT_SECONDS_OBJECTIVE = 2.0
TPOT_SECONDS_OBJECTIVE = 0.060


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What happened to one request. Times are seconds since the trace began."""

    tenant: str
    arrived_at: float
    prompt_tokens: int
    output_tokens: int
    first_at: float | None = None
    """First token; None if none came."""
    last_at: float | None = None
    """Last token; None if the answer did not end."""
    cached_tokens: int = 0
    worker: int | None = None
    """Place in the fleet of the last worker that the request was sent to."""
    attempts: int = 0
    """How many workers the request was sent to."""
    error: str | None = None
    """Error code; None if the request was answered."""
    service_class: str = ""
    """Its service class; empty: requests have none."""
    soonest_ttft: float | None = None
    """Seconds to the first token, had it gone first and to the best engine; None: not asked for."""
    target_seconds: float | None = None
    """The TTFT target of its class; None: it has none."""

    @property
    def ttft(self) -> float | None:
        """Time to the first token, in seconds."""
        return None if self.first_at is None else self.first_at - self.arrived_at

    @property
    def tpot(self) -> float | None:
        """Time per output token, in seconds; None with fewer than two tokens."""
        if self.first_at is None or self.last_at is None or self.output_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.output_tokens - 1)

    @property
    def missed(self) -> bool:
        """Whether the request was refused, or its first token came after the target of its class."""
        ttft = self.ttft
        late = ttft is not None and self.target_seconds is not None and ttft > self.target_seconds
        return self.error is not None or late

    @property
    def good(self) -> bool:
        """Whether the request met both objectives."""
        ttft, tpot = self.ttft, self.tpot
        return (
            self.error is None
            and ttft is not None
            and ttft <= TTFT_SECONDS_OBJECTIVE
            and (tpot is None or tpot <= TPOT_SECONDS_OBJECTIVE)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of one policy over one trace with one seed."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    """When the last answer ended."""
    computed_tokens: tuple[int, ...]
    """Prompt tokens that each worker computed."""
    busy_seconds: tuple[float, ...]
    """How long each worker computed."""
    predicted_tokens: int = 0
    """Prompt tokens that the chosen routes expected to be cached."""


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of some requests; None where there is nothing to measure."""
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
        **{f"ttft_ms_p{percent}": _percentile(ttft, percent) for percent in (50, 90, 95, 99)},
        "tpot_ms_mean": _mean(tpot),
        "tpot_ms_p90": _percentile(tpot, 90),
        "goodput": sum(outcome.good for outcome in outcomes) / len(outcomes) if outcomes else None,
    }


def figures(result: RunResult) -> dict[str, Any]:
    """Return the figures of a run as `{"all": ..., "tenants": {...}}`, as in every result file.

    `classes` are added where requests have service classes.
    """
    tenants: dict[str, list[Outcome]] = {}
    classes: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes:
        tenants.setdefault(outcome.tenant, []).append(outcome)
        if outcome.service_class:
            classes.setdefault(outcome.service_class, []).append(outcome)
    whole = summary(result.outcomes) | {
        "imbalance": imbalance(result.computed_tokens),
        "busy": sum(result.busy_seconds) / len(result.busy_seconds) / result.seconds
        if result.seconds
        else None,
        "retries": sum(max(0, outcome.attempts - 1) for outcome in result.outcomes),
        "seconds": result.seconds,
    }
    found = {
        "all": whole,
        "tenants": {name: summary(of) for name, of in sorted(tenants.items())} if len(tenants) > 1 else {},
    }
    if classes:
        found["classes"] = {name: class_summary(of) for name, of in sorted(classes.items())}
    return found


def class_summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of the requests of one service class; `missed`: the share that was refused or late."""
    missed = sum(outcome.missed for outcome in outcomes)
    return summary(outcomes) | {"missed": missed / len(outcomes) if outcomes else None}


def averaged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of the same figures of several seeds; a tenant absent from a run had 0 requests."""
    nothing = summary(())
    tenants = sorted({name for run in runs for name in run["tenants"]})
    found = {
        "all": _averaged([run["all"] for run in runs]),
        "tenants": {name: _averaged([run["tenants"].get(name, nothing) for run in runs]) for name in tenants},
    }
    classes = sorted({name for run in runs for name in run.get("classes", ())})
    if classes:
        found["classes"] = {
            name: _averaged([run["classes"][name] for run in runs if name in run.get("classes", ())])
            for name in classes
        }
    return found


def imbalance(work: Iterable[float]) -> float | None:
    """Return the largest value over the mean; None if all are 0."""
    each = list(work)
    return max(each) * len(each) / sum(each) if sum(each) else None


def _averaged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: _mean([run[name] for run in runs if run[name] is not None]) for name in runs[0]}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Return the nearest-rank percentile: the smallest value that so many percent of all values do not exceed."""
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)] if ordered else None
