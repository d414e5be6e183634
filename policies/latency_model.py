"""A worker's speed, learnt from its answers.

A first token that came `ttft_ms` after dispatch, with `tokens` uncached prompt tokens to compute (those ahead of it
and its own), is one sample of

    ttft_ms = fixed_ms + ms_per_token * tokens

Large prompts tell the slope, small ones the constant; each sample moves its part by a twentieth of the distance,
and by no more than a factor of two, so that one stalled request does not turn the ranking over.
"""

from msgspec.structs import replace

from workers.worker import Speed

LEARNING_RATE = 0.05
LARGE_PROMPT_TOKENS = 64


def _towards(old: float, sample: float) -> float:
    bounded = min(max(sample, old / 2), old * 2)
    return old + LEARNING_RATE * (bounded - old)


def learn_prefill(speed: Speed, tokens: int, ttft_ms: float) -> Speed:
    """The speed after one first token."""
    if tokens < LARGE_PROMPT_TOKENS:
        return replace(speed, fixed_ms=_towards(speed.fixed_ms, max(ttft_ms, 0.01)))
    slope = max(ttft_ms - speed.fixed_ms, 0.05 * ttft_ms) / tokens
    return replace(speed, ms_per_token=_towards(speed.ms_per_token, slope))


def learn_step(speed: Speed, tpot_ms: float) -> Speed:
    """The speed after one stream whose tokens came `tpot_ms` apart on average."""
    return replace(speed, step_ms=_towards(speed.step_ms, tpot_ms))


def predicted_ttft_ms(speed: Speed, tokens: int) -> float:
    """What the model expects for so many uncached tokens ahead and own."""
    return speed.fixed_ms + speed.ms_per_token * tokens
