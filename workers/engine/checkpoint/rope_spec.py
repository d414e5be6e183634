"""The rotary position embedding of a model, read from its config.json.

default   theta alone
linear    all positions / factor                             Chen et al. 2023, arXiv 2306.15595
llama3    slow pairs stretched, with a blend between two frequency factors            Llama 3.1
yarn      slow pairs stretched, and cosine and sine scaled   Peng et al. 2023, arXiv 2309.00071
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workers.engine.checkpoint.json_files import inner_object, integer, number
from workers.engine.errors import CheckpointInvalid

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """The base of the frequencies and their scaling for stretched contexts; each kind reads its own fields."""

    kind: RopeKind = "default"
    theta: float = 10_000.0
    """The base of the frequencies."""
    factor: float = 1.0
    """linear, llama3, yarn: how many times the context is stretched."""
    original_context: int = 0
    """llama3, yarn: the context length before it was stretched."""
    low_frequency_factor: float = 1.0
    """llama3: pairs with fewer rotations within the original context are stretched by the whole factor."""
    high_frequency_factor: float = 4.0
    """llama3: pairs with more rotations within the original context are not stretched."""
    beta_fast: float = 32.0
    """yarn: pairs with more rotations within the original context are not stretched."""
    beta_slow: float = 1.0
    """yarn: pairs with fewer rotations within the original context are stretched by the whole factor."""
    truncate: bool = True
    """yarn: whether the bounds between those are rounded to whole pairs."""
    attention_factor: float = 1.0
    """yarn: the factor that cosine and sine are multiplied by."""


def rope_spec(config: Mapping[str, Any], context: int) -> RopeSpec:
    """Return the rotary embedding of a parsed config.json.

    Two generations of that file are in use: the old one has `rope_theta` and `rope_scaling` at the top, the new one
    (transformers 5) has both in `rope_parameters`.

    Args:
        config: the parsed file.
        context: the model's context length, `max_position_embeddings`.

    Raises:
        CheckpointInvalid: the kind is not supported, or a number is missing or wrong.
    """
    values = inner_object(config, "rope_scaling") | inner_object(config, "rope_parameters")
    if kinds := [name for name, value in values.items() if isinstance(value, Mapping)]:
        raise CheckpointInvalid(
            f"config.json: rope_parameters of single kinds of layers ({', '.join(kinds)}) are not supported"
        )
    values.setdefault("rope_theta", config.get("rope_theta"))
    kind = values.get("rope_type") or values.get("type") or "default"
    theta = number(values, "rope_theta", 10_000.0)
    partial = values.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise CheckpointInvalid("config.json: partial rotary embeddings are not supported")
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(kind="linear", theta=theta, factor=number(values, "factor"))
    # Some files have the original length at the top instead of in the rope's own object; then that one counts.
    outside = integer(values, "original_max_position_embeddings", context)
    original = integer(config, "original_max_position_embeddings", outside)
    if kind == "llama3":
        return _llama3(values, theta, original)
    if kind == "yarn":
        return _yarn(values, theta, original, context)
    raise CheckpointInvalid(
        f"config.json: rope type {kind!r} is not supported (default, linear, llama3, yarn)"
    )


def _llama3(values: Mapping[str, Any], theta: float, original: int) -> RopeSpec:
    low, high = number(values, "low_freq_factor"), number(values, "high_freq_factor")
    if high <= low:
        raise CheckpointInvalid(
            f"config.json: high_freq_factor {high} must be more than low_freq_factor {low}"
        )
    return RopeSpec(
        kind="llama3",
        theta=theta,
        factor=number(values, "factor"),
        low_frequency_factor=low,
        high_frequency_factor=high,
        original_context=original,
    )


def _yarn(values: Mapping[str, Any], theta: float, original: int, context: int) -> RopeSpec:
    if theta <= 1:
        raise CheckpointInvalid(f"config.json: rope_theta {theta} must be more than 1 for yarn")
    factor = number(values, "factor", context / original)
    return RopeSpec(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_context=original,
        beta_fast=number(values, "beta_fast", 32.0),
        beta_slow=number(values, "beta_slow", 1.0),
        truncate=bool(values.get("truncate", True)),
        attention_factor=number(values, "attention_factor", _temperature(values, factor)),
    )


def _temperature(values: Mapping[str, Any], factor: float) -> float:
    """Return yarn's default factor of cosine and sine: 0.1 ln(factor) + 1, equation 22 of the paper."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weights = values.get("mscale"), values.get("mscale_all_dim")
    if all(weights):
        return scale(number(values, "mscale")) / scale(number(values, "mscale_all_dim"))
    return scale(1.0)
