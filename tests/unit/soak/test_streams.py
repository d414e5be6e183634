"""The verdict over rounds of streams counts the second half of the rounds."""

import random

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


def noisy_rounds(leak, count=10):
    """Memory after rounds of streams: two fill the allocator, and each leaks so many bytes."""
    noise = random.Random(7)
    levels = [
        int((150 + min(at, 2) * 10 + noise.uniform(-1, 1)) * MIB + at * leak) for at in range(1, count + 1)
    ]
    return [Round(open_max=2000, memory_open={"g": each}, memory_after={"g": each}) for each in levels]


@pytest.mark.parametrize(("leak", "flat"), [(0, True), (-MIB, True), (2 * MIB, False)])
def test_memory_after_rounds_of_streams_stays_at_one_level(leak, flat):
    risen, allowed = growth(noisy_rounds(leak), "g")
    assert (risen <= allowed) is flat
