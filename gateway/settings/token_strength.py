"""The strength of secrets that people choose, as an estimate of the guesses that they withstand."""

from math import log2

BITS_MIN = 128
DISTINCT_CHARACTERS_MIN = 8


def weak_token_problem(token: str) -> str | None:
    """Return why a token can be guessed; None if it is as strong as 128 random bits.

    Each character counts as one drawn from its alphabet, as in the output of `openssl rand -hex 16`.
    """
    bits = len(token) * log2(max(2, _alphabet_size(token)))
    if bits >= BITS_MIN and len(set(token)) >= DISTINCT_CHARACTERS_MIN:
        return None
    return "the token can be guessed: it needs 128 random bits (openssl rand -hex 16)"


def _alphabet_size(token: str) -> int:
    """Return the size of the smallest usual alphabet that has all characters of a token."""
    characters = set(token)
    if characters <= set("0123456789"):
        return 10
    if characters <= set("0123456789abcdef") or characters <= set("0123456789ABCDEF"):
        return 16
    size = 10 if characters & set("0123456789") else 0
    size += 26 if any("a" <= character <= "z" for character in characters) else 0
    size += 26 if any("A" <= character <= "Z" for character in characters) else 0
    return size + (2 if any(not character.isalnum() for character in characters) else 0)
