"""The duration of an engine's step, in milliseconds, as polynomials that a calibration file can replace.

    prefill of t tokens    a0 + a1 t + a2 t^2
    decode                 b0 + b1 p + b2 p^2      p: tokens of running streams over the KV capacity, at most 1
    both in one step       the sum

The defaults are those of the mock engine in NVIDIA's Dynamo: a model of 8B class on one GPU. A worker of
another kind is described by a JSON or YAML file with these fields, fitted to its own steps. A model ranks
policies; it is no measurement of a GPU.
"""

from math import isfinite, isnan, nan
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=10**9)]
Polynomial = tuple[float, float, float]
FILE_BYTES_MAX = 2**20


class CalibrationInvalid(ValueError):
    """A calibration file cannot be used; the text has the place and the cause."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step times and step limits of one kind of worker."""

    prefill_ms: Polynomial = (16.5, 0.015183, 4.21e-7)
    """Constant, linear and quadratic term over prompt tokens."""
    decode_ms: Polynomial = (5.74, 54.01, -25.74)
    """Constant, linear and quadratic term over the filled share of the KV."""
    chunk_tokens: Count = 8192
    """Prefill and decode tokens of one step, at most."""
    sequences_max: Count = 256
    """Sequences at one time."""

    def __post_init__(self) -> None:
        # Not a number is not above zero either.
        if not (_least(self.prefill_ms, 1, self.chunk_tokens) > 0 and isfinite(self.ms_per_token)):
            raise ValueError("`prefill_ms` has to be above 0 for every number of tokens up to `chunk_tokens`")
        if not (_least(self.decode_ms, 0, 1) >= 0 and isfinite(self.decode(1.0))):
            raise ValueError("`decode_ms` must not be below 0 for any share from 0 to 1")

    def prefill(self, tokens: int) -> float:
        """Return the time of a step that computes so many prompt tokens."""
        constant, linear, quadratic = self.prefill_ms
        return constant + tokens * (linear + tokens * quadratic)

    def decode(self, share: float) -> float:
        """Return the time of a step that gives each stream a token, with KV filled to this share."""
        constant, linear, quadratic = self.decode_ms
        share = min(share, 1.0)
        return constant + share * (linear + share * quadratic)

    def decode_run(self, steps: int, tokens: int, streams: int, capacity: int) -> float:
        """Return the time of so many decode steps in a row.

        With each step `streams` tokens join the `tokens` in a KV of `capacity` tokens.
        """
        growing = min(steps, (capacity - tokens) // streams + 1) if tokens <= capacity else 0
        first = growing * (growing - 1) / 2
        second = first * (2 * growing - 1) / 3
        start, rise = tokens / capacity, streams / capacity
        shares = start * growing + rise * first
        squares = start * (start * growing + 2 * rise * first) + rise * rise * second
        constant, linear, quadratic = self.decode_ms
        run = constant * growing + linear * shares + quadratic * squares
        return run + (steps - growing) * (constant + linear + quadratic)

    def at_speed(self, speed: float) -> "StepTime":
        """Return the step times of a worker that is so many times as fast."""
        return msgspec.structs.replace(
            self, prefill_ms=_divided(self.prefill_ms, speed), decode_ms=_divided(self.decode_ms, speed)
        )

    @property
    def ms_per_token(self) -> float:
        """Prefill time of one token in a full step: the rated speed that policies start from."""
        return self.prefill(self.chunk_tokens) / self.chunk_tokens


def _divided(polynomial: Polynomial, by: float) -> Polynomial:
    constant, linear, quadratic = polynomial
    return constant / by, linear / by, quadratic / by


def _least(polynomial: Polynomial, first: float, last: float) -> float:
    """Return the least value between two points: at one of them or at the vertex; NaN if one of these is NaN."""
    constant, linear, quadratic = polynomial
    places = [first, last]
    if quadratic > 0:
        places.append(min(max(-linear / (2 * quadratic), first), last))
    values = [constant + at * (linear + at * quadratic) for at in places]
    return nan if any(isnan(value) for value in values) else min(values)


def read_step_time(path: Path) -> StepTime:
    """Read a calibration file, JSON or YAML. Raises CalibrationInvalid with the path of what is wrong."""
    try:
        with path.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX)
    except OSError as err:
        raise CalibrationInvalid(f"{path} cannot be read: {err.strerror}") from err
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(text, type=StepTime)
        return msgspec.yaml.decode(text, type=StepTime)
    except msgspec.DecodeError as err:
        raise CalibrationInvalid(f"{path}: {err}") from err
