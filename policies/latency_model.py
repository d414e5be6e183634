"""The latency model of a worker: its speed, learnt online from the answers it gives.

A first token that came `ttft_ms` after dispatch, with `tokens` uncached prompt tokens to compute (those ahead of
the request and its own), is one sample of

    ttft_ms = fixed_ms + ms_per_token * tokens

Recursive least squares with exponential forgetting fits both constants at once (Haykin, Adaptive Filter Theory,
chapter "The RLS Algorithm"), in two numbers and a 2 x 2 matrix per worker. Three things make the fit robust:

* A sample has the weight 1 / (1 + thousands of tokens), since long prefills vary in proportion to their length.
* An error of more than four times the usual error counts as four times (Huber's clipping), so that neither one
  stalled request nor a stall of six reverses the ranking. Of a worker that becomes ten times slower, the learnt
  time is twice the former one after ten answers, five times after 35, and eight times after 80.
* The covariance matrix is bounded, so that a day of prompts of equal length, which teach nothing of the slope,
  cannot make it grow without bound.

Few samples depend more on the moment than on the worker: a first answer is slow because kernels are compiled and
weights paged in, and would make the one worker that was tried look worse than those that never were. So all workers
of the same models teach one more fit, the fleet's, and each worker counts as equal to the fleet as long as little
is known of it: with n samples its own fit has the weight n / (n + 16) (James and Stein's shrinkage; the mean is
geometric, as speeds are ratios). A worker that joins starts with the speed of the others.
"""

from collections.abc import Collection
from math import log
from statistics import fmean

import msgspec
from msgspec.structs import replace

from workers.worker import Speed

FORGETTING = 0.98
"""Weight that a sample keeps with each further one: it weighs half after 34."""

CLIPPED_AT = 4.0
"""Largest error that counts, in multiples of the usual error."""

ERROR_RATE = 0.1
"""Share by which the usual error moves towards the error of a new sample."""

STEP_RATE = 0.05
"""Share by which the learnt time of a decode step moves towards a new sample."""

PACE = 0.85
"""Share of its learnt speed at which a worker is assumed to compute: running streams and unfull steps slow it."""

COMPUTED_MAX = 0.8
"""Largest share of the queued tokens that may count as computed before a first token proves it."""

VARIANCE_FIRST = 1.0
VARIANCE_MAX = 10.0
"""Variances of the constants before the first sample, and the largest sum that both may have."""

OWN_WEIGHT_HALF = 16
"""Samples after which a worker's own fit counts as much as the fleet's."""

CONVERGED_SAMPLES = 400
"""Samples after which the fleet's fit has a weight of at most 4 %, and a worker moves by its own samples alone."""

FIXED_MS = (0.01, 120_000.0)
MS_PER_TOKEN = (1e-5, 1_000.0)
"""Bounds of the two constants."""

THOUSAND = 1000.0


class PrefillFit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The least-squares fit of a worker's prefill time, and its uncertainty."""

    fixed_ms: float
    ms_per_token: float
    error_ms: float
    """Usual distance of a sample from the prediction, weighted by the length of the prompt."""
    fixed_variance: float = VARIANCE_FIRST
    slope_variance: float = VARIANCE_FIRST
    covariance: float = 0.0
    """The covariance matrix of the fit (this and the two fields above), with tokens in thousands."""
    samples: int = 0
    """How many samples the fit was learnt from."""

    @classmethod
    def from_speed(cls, speed: Speed) -> "PrefillFit":
        """Return a fit without samples that starts from a guessed speed."""
        guess = predicted_ttft_ms(speed, int(THOUSAND))
        return cls(fixed_ms=speed.fixed_ms, ms_per_token=speed.ms_per_token, error_ms=guess / 4)

    def updated(self, tokens: int, ttft_ms: float) -> "PrefillFit":
        """Return the fit after one more sample: a first token `ttft_ms` after dispatch, `tokens` to compute."""
        thousands = tokens / THOUSAND
        weight = 1 / (1 + thousands)
        one, length = weight, thousands * weight  # the weighted regressor
        error = weight * (ttft_ms - self.fixed_ms - self.ms_per_token * tokens)
        distance, limit = abs(error), CLIPPED_AT * self.error_ms
        residual = error if distance <= limit else limit if error > 0 else -limit

        # Recursive least squares with forgetting: the gain of the sample, then the covariance matrix after it.
        fixed_variance, covariance, slope_variance = self.fixed_variance, self.covariance, self.slope_variance
        towards_fixed = fixed_variance * one + covariance * length
        towards_slope = covariance * one + slope_variance * length
        scale = FORGETTING + one * towards_fixed + length * towards_slope
        gain_fixed, gain_slope = towards_fixed / scale, towards_slope / scale
        fixed_variance = (fixed_variance - gain_fixed * towards_fixed) / FORGETTING
        covariance = (covariance - gain_fixed * towards_slope) / FORGETTING
        slope_variance = (slope_variance - gain_slope * towards_slope) / FORGETTING
        trace = fixed_variance + slope_variance
        shrink = VARIANCE_MAX / trace if trace > VARIANCE_MAX else 1.0

        # One sample at most doubles the usual error.
        usual = self.error_ms + ERROR_RATE * (min(distance, 11 * self.error_ms) - self.error_ms)
        fixed_ms = self.fixed_ms + gain_fixed * residual
        ms_per_token = self.ms_per_token + gain_slope * residual / THOUSAND
        return PrefillFit(
            fixed_ms=min(max(fixed_ms, FIXED_MS[0]), FIXED_MS[1]),
            ms_per_token=min(max(ms_per_token, MS_PER_TOKEN[0]), MS_PER_TOKEN[1]),
            error_ms=max(usual, 0.001),
            fixed_variance=fixed_variance * shrink,
            slope_variance=slope_variance * shrink,
            covariance=covariance * shrink,
            samples=self.samples + 1,
        )

    def speed(self, before: Speed) -> Speed:
        """Return `before` with the two constants of this fit."""
        return replace(before, fixed_ms=self.fixed_ms, ms_per_token=self.ms_per_token)

    @property
    def converged(self) -> bool:
        """Whether there are so many samples that the fleet's fit hardly matters any more."""
        return self.samples >= CONVERGED_SAMPLES


def shrunk_speed(
    own: PrefillFit, fleet: PrefillFit, *, steps: int, step_ms: float, fleet_step_ms: float
) -> Speed:
    """Return a worker's speed as the weighted mean of its own fit and the fit of all workers of the same models.

    `step_ms` was learnt from `steps` streams of the worker, `fleet_step_ms` from those of the fleet.
    """
    prefill, decode = own.samples / (own.samples + OWN_WEIGHT_HALF), steps / (steps + OWN_WEIGHT_HALF)
    return Speed(
        fixed_ms=_between(fleet.fixed_ms, own.fixed_ms, prefill),
        ms_per_token=_between(fleet.ms_per_token, own.ms_per_token, prefill),
        step_ms=_between(fleet_step_ms, step_ms, decode),
    )


def updated_step_ms(step_ms: float, tpot_ms: float) -> float:
    """Return the time of a decode step after one more stream, with tokens that came `tpot_ms` apart on average.

    It moves by STEP_RATE of the distance; a sample counts as half or twice the known time at most.
    """
    sample = min(max(tpot_ms, step_ms / 2), step_ms * 2)
    return step_ms + STEP_RATE * (sample - step_ms)


def computed_tokens(since_ms: float, tokens_queued: int, speed: Speed) -> int:
    """Return how many of the queued tokens the worker has computed by now.

    `since_ms` is the time since the last first token, or since the queue was empty. A first token shows only that a
    whole prompt is done, so between two of them progress is estimated: the share that has passed of the time that
    the whole queue takes, which for a few tokens is hardly less than a step. Running streams and unfull steps slow
    a worker (PACE), and a prompt that should be done but has brought no first token is not done (COMPUTED_MAX).
    """
    passed = since_ms * PACE / predicted_ttft_ms(speed, tokens_queued)
    return int(tokens_queued * min(passed, COMPUTED_MAX))


def tokens_counted(tokens_queued: int, queued_then: int, computed_then: int) -> int:
    """Return how many queued tokens an earlier estimate of a wait is to count now, before it takes any off.

    It was made with `queued_then` tokens in the queue, and takes `computed_then` off as computed. The first tokens
    that have left the queue since are the same ones: they are not to be taken off twice.
    """
    return max(tokens_queued, min(tokens_queued + computed_then, queued_then))


def predicted_ttft_ms(speed: Speed, tokens: int) -> float:
    """Return the expected time to the first token, with `tokens` uncached tokens ahead and of the request's own."""
    return speed.fixed_ms + speed.ms_per_token * tokens


def tokens_within(speed: Speed, ms: float) -> int:
    """Return how many uncached tokens have the first token so many milliseconds after dispatch; 0: not one has."""
    return max(0, int((ms - speed.fixed_ms) / speed.ms_per_token))


def mean_speed(speeds: Collection[Speed]) -> Speed:
    """Return the mean of at least one speed."""
    return Speed(
        fixed_ms=fmean(each.fixed_ms for each in speeds),
        ms_per_token=fmean(each.ms_per_token for each in speeds),
        step_ms=fmean(each.step_ms for each in speeds),
    )


def predicted_ttft_p95_ms(speed: Speed, error_ms: float, tokens: int) -> float:
    """Return the time within which 95 of 100 first tokens are expected; `error_ms` is the fit's usual error.

    Errors are assumed to follow Laplace's distribution, with tails longer than the normal one's: with mean
    distance b, one in twenty is above ln(10) b.
    """
    return predicted_ttft_ms(speed, tokens) + log(10) * error_ms * (1 + tokens / THOUSAND)


def _between(one: float, other: float, weight: float) -> float:
    """Return the weighted geometric mean."""
    return float(one ** (1 - weight) * other**weight)
