"""A worker's speed, learnt from its answers while it works.

A first token that came `ttft_ms` after dispatch, with `tokens` uncached prompt tokens to compute (those ahead of it
and its own), is one sample of

    ttft_ms = fixed_ms + ms_per_token * tokens

Recursive least squares with exponential forgetting fits both constants at once (Haykin, Adaptive Filter Theory,
chapter "The RLS Algorithm"), in two numbers and a 2 x 2 matrix per worker. Three things keep it honest in the wild:

* A sample weighs 1 / (1 + thousands of tokens) of its error, for long prefills vary in proportion to their length.
* What is off by more than four times the usual error counts as four times (Huber's clipping), so that one stalled
  request does not turn the ranking over, nor a stall of six. A worker that has become ten times slower is held for
  twice as slow after ten answers, for half of what it is after 35, for four fifths of it after 80.
* The matrix is bounded: a day of equal prompts, which teach nothing of the slope, does not wind it up.

Few samples say more of the moment than of the worker: a first answer is slow because kernels are compiled and
weights paged in, and would make the one worker that was tried look worse than those that never were. So all workers
of the same models teach one more fit, the fleet's, and each is held for equal to it as long as little is known of
it: with n samples its own fit has the weight n / (n + 16) (James and Stein's shrinkage; the mean is geometric, as
speeds are ratios). A worker that joins starts where its fellows are.
"""

from math import log

import msgspec
from msgspec.structs import replace

from workers.worker import Speed

FORGETTING = 0.98
"""A sample weighs half after 34 further ones."""

CLIPPED_AT = 4.0
"""Times the usual error."""

ERROR_RATE = 0.1
STEP_RATE = 0.05

PACE = 0.85
COMPUTED_MAX = 0.8

VARIANCE_FIRST = 1.0
VARIANCE_MAX = 10.0

OWN_WEIGHT_HALF = 16
"""Samples after which a worker's own fit counts as much as the fleet's."""

SETTLED_SAMPLES = 400
"""After these the fleet's fit does not matter any more."""

FIXED_MS = (0.01, 120_000.0)
MS_PER_TOKEN = (1e-5, 1_000.0)
THOUSAND = 1000.0


class PrefillFit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was learnt of one worker's prefill, and how sure it is.

    `fixed_ms`, `ms_per_token`: the constants above. `error_ms`: usual distance of a sample from the prediction,
    weighted as above. The other three are the fit's covariance, with tokens in thousands. `samples`: how many.
    """

    fixed_ms: float
    ms_per_token: float
    error_ms: float
    fixed_variance: float = VARIANCE_FIRST
    slope_variance: float = VARIANCE_FIRST
    covariance: float = 0.0
    samples: int = 0

    @classmethod
    def seeded(cls, speed: Speed) -> "PrefillFit":
        """A first guess, half of which is expected to be wrong."""
        guess = predicted_ttft_ms(speed, int(THOUSAND))
        return cls(fixed_ms=speed.fixed_ms, ms_per_token=speed.ms_per_token, error_ms=guess / 4)

    def learnt(self, tokens: int, ttft_ms: float) -> "PrefillFit":
        """The fit after one first token."""
        thousands = tokens / THOUSAND
        weight = 1 / (1 + thousands)
        one, length = weight, thousands * weight  # the weighted regressor
        off = weight * (ttft_ms - self.fixed_ms - self.ms_per_token * tokens)
        limit = CLIPPED_AT * self.error_ms
        residual = min(max(off, -limit), limit)

        p, q, r = self.fixed_variance, self.covariance, self.slope_variance
        towards_fixed, towards_slope = p * one + q * length, q * one + r * length
        scale = FORGETTING + one * towards_fixed + length * towards_slope
        gain_fixed, gain_slope = towards_fixed / scale, towards_slope / scale

        p = (p - gain_fixed * towards_fixed) / FORGETTING
        q = (q - gain_fixed * towards_slope) / FORGETTING
        r = (r - gain_slope * towards_slope) / FORGETTING
        shrunk = min(1.0, VARIANCE_MAX / (p + r))
        # Ten times the usual is the most that one error says about what is usual: it doubles it at most.
        usual = self.error_ms + ERROR_RATE * (min(abs(off), 11 * self.error_ms) - self.error_ms)
        return PrefillFit(
            fixed_ms=_within(self.fixed_ms + gain_fixed * residual, FIXED_MS),
            ms_per_token=_within(self.ms_per_token + gain_slope * residual / THOUSAND, MS_PER_TOKEN),
            error_ms=max(usual, 0.001),
            fixed_variance=p * shrunk,
            slope_variance=r * shrunk,
            covariance=q * shrunk,
            samples=self.samples + 1,
        )

    def speed(self, before: Speed) -> Speed:
        """`before`, with the prefill as learnt."""
        return replace(before, fixed_ms=self.fixed_ms, ms_per_token=self.ms_per_token)

    @property
    def settled(self) -> bool:
        """Does it stand by itself?"""
        return self.samples >= SETTLED_SAMPLES


def shrunk(own: PrefillFit, fleet: PrefillFit, *, steps: int, step_ms: float, fleet_step_ms: float) -> Speed:
    """A worker's speed by what was learnt of it, and of all that serve the same models.

    `steps`: streams that `step_ms` was learnt from.
    """
    prefill, decode = own.samples / (own.samples + OWN_WEIGHT_HALF), steps / (steps + OWN_WEIGHT_HALF)
    return Speed(
        fixed_ms=_between(fleet.fixed_ms, own.fixed_ms, prefill),
        ms_per_token=_between(fleet.ms_per_token, own.ms_per_token, prefill),
        step_ms=_between(fleet_step_ms, step_ms, decode),
    )


def learn_step(speed: Speed, tpot_ms: float) -> Speed:
    """The speed after one stream whose tokens came `tpot_ms` apart on average."""
    return replace(speed, step_ms=learnt_step_ms(speed.step_ms, tpot_ms))


def learnt_step_ms(step_ms: float, tpot_ms: float) -> float:
    """It moves by a twentieth of the distance, and no further than to half or twice in one sample."""
    sample = min(max(tpot_ms, step_ms / 2), step_ms * 2)
    return step_ms + STEP_RATE * (sample - step_ms)


def computed_tokens(since_ms: float, tokens_queued: int, speed: Speed) -> int:
    """How many of the tokens ahead have been computed, `since_ms` after the last first token or since there are
    any.

    A first token tells only that a whole prompt is done, so between two of them progress is estimated from the
    speed. Running streams and unfull steps slow a worker, and what is expected to be done but has not answered
    is not done: both are allowed for, the first by a sixth of the pace, the second by a fifth of the tokens.
    """
    return int(min(since_ms / speed.ms_per_token * PACE, tokens_queued * COMPUTED_MAX))


def predicted_ttft_ms(speed: Speed, tokens: int) -> float:
    """What the model expects for so many uncached tokens ahead and own."""
    return speed.fixed_ms + speed.ms_per_token * tokens


def predicted_ttft_p95_ms(speed: Speed, error_ms: float, tokens: int) -> float:
    """What 95 of 100 first tokens are expected to take at most. `error_ms`: of the fit.

    Errors are held for Laplace's, whose tails are longer than normal ones: of mean distance b, one in twenty is
    above ln(10) b.
    """
    return predicted_ttft_ms(speed, tokens) + log(10) * error_ms * (1 + tokens / THOUSAND)


def _between(one: float, other: float, weight: float) -> float:
    """The weighted geometric mean."""
    return float(one ** (1 - weight) * other**weight)


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
