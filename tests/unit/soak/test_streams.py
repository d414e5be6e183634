"""The verdict over rounds of streams counts the second half of the rounds."""

import pytest

from tests.soak.streams import ROUNDS_MIN, Round, growth

MIB = 1024**2


def rounds(*levels):
    return [Round(open_max=1, memory_open={"g": level}, memory_after={"g": level}) for level in levels]


def is_flat(*levels):
    risen, allowed = growth(rounds(*(level * MIB for level in levels)), "g")
    return risen <= allowed


def test_a_level_that_is_reached_in_the_first_half_is_flat():
    assert is_flat(167, 170, 176, 180, 184, 184, 184, 184.5, 184, 184)


def test_memory_that_rises_with_every_round_is_not_flat():
    assert not is_flat(*range(167, 187, 2))


def test_too_few_rounds_have_no_verdict():
    with pytest.raises(ValueError, match="too few"):
        growth(rounds(*[MIB] * (ROUNDS_MIN - 1)), "g")
