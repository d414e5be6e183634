"""The chance of a first token by the TTFT target; a request is refused once no worker is likely to meet its target.

A request that is refused misses its target for certain, and one that is sent and is late costs only its prefill. So
it is refused if its chance is below CHANCE_MIN. The errors of predictions are assumed to follow Laplace's
distribution, with the mean distance b of the fit of a worker's speed:

    P(TTFT < prediction - d) = e^(-d/b) / 2           d = b ln(1 / (2 CHANCE_MIN))

In quiet times b is small, and the prediction decides. After an engine or its machine has stalled b is large and the
prediction too high: to refuse by it would turn requests away from idle workers, and leave nothing to learn from.
"""

from collections.abc import Callable
from math import log

from policies.latency_model import THOUSAND, PrefillFit, predicted_ttft_ms
from workers.worker import Speed

CHANCE_MIN = 0.2
"""A request with a smaller chance of its first token in time is refused."""

SAMPLES_MIN = 8
"""First tokens of a worker before a prediction of its TTFT refuses a request."""

MeetsTarget = Callable[[Speed, PrefillFit, int, float], bool]
"""Whether a worker of this speed meets a target so many ms from now, after so many tokens."""


def in_time(speed: Speed, fit: PrefillFit, tokens: int, left_ms: float) -> bool:
    """Return whether a first token is expected within `left_ms`; assume it of a worker with few samples."""
    return fit.samples < SAMPLES_MIN or predicted_ttft_ms(speed, tokens) <= left_ms


def has_a_chance(speed: Speed, fit: PrefillFit, tokens: int, left_ms: float) -> bool:
    """Return whether the chance of a first token within `left_ms` is worth a prefill."""
    margin = fit.error_ms * (1 + tokens / THOUSAND) * log(0.5 / CHANCE_MIN)
    return fit.samples < SAMPLES_MIN or predicted_ttft_ms(speed, tokens) - margin <= left_ms
