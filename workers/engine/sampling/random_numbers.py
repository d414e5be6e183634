"""Random numbers as a pure function of the seed, the token's position and the purpose.

So a seeded request gets the same numbers alone, in any batch, and again after it was preempted and recomputed.
"""

from enum import IntEnum

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


class RandomStream(IntEnum):
    """The purpose of a random number.

    One position may need several numbers, and one number that decided two things would correlate them.
    """

    TOKEN = 0
    """Draws a token in plain decoding."""
    DRAFT = 1
    """Draws a draft token."""
    ACCEPT = 2
    """Decides whether a draft is accepted."""
    RESAMPLE = 3
    """Draws the token after the accepted drafts."""


def uniform(seed: int, position: int, stream: RandomStream = RandomStream.TOKEN) -> float:
    """Return a number in [0, 1) with 53 random bits."""
    # The seed is mixed alone first: else seed s at position p + 1 and seed s + step at p would give equal numbers.
    key = _mix(seed)
    if stream:
        key = _mix(key + stream)
    return (_mix(key + _STEP * (position + 1)) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """Return the finaliser of SplitMix64: every input bit flips half of the output bits."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
