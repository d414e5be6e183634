"""The n-gram drafter: what followed the same tokens earlier in a text is drafted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.sequence import Sequence
from workers.engine.speculative.ngram import NgramDrafter, continuation


def looked_up(tokens: list[int], shortest: int, longest: int) -> int | None:
    """The same by trying everything: longest end first, earliest place first."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for begin in range(len(tokens) - length):
            if tokens[begin : begin + length] == tokens[-length:]:
                return begin + length
    return None


@given(tokens=st.lists(st.integers(0, 2), max_size=14), shortest=st.integers(1, 3), more=st.integers(0, 3))
def test_looking_up_finds_the_earliest_place_of_the_longest_end(
    tokens: list[int], shortest: int, more: int
) -> None:
    found = continuation(np.array(tokens, dtype=np.int32), shortest=shortest, longest=shortest + more)
    assert looked_up(tokens, shortest, shortest + more) == found


def sequence_of(tokens: list[int]) -> Sequence:
    return Sequence(
        id="a",
        order=1,
        tokens=tokens,
        num_prompt=1,
        params=SamplingParams(max_tokens=50),
        seed=0,
        salt="",
        stop_ids=frozenset(),
    )


@pytest.mark.parametrize(
    ("tokens", "limit", "drafts"),
    [
        ([1, 2, 3, 4, 5, 1, 2], 3, [3, 4, 5]),
        ([1, 2, 3, 4, 5, 1, 2], 9, [3, 4, 5, 1, 2, 3, 4, 5, 1]),
        ([7, 8, 7, 8], 5, [7, 8, 7, 8, 7]),
        ([5, 5, 5], 4, [5, 5, 5, 5]),
        ([1, 2, 3, 4], 4, []),
        ([1], 4, []),
        ([9, 2, 3, 8, 2, 4, 9, 2], 1, [3]),
    ],
)
def test_what_followed_is_drafted_and_a_loop_goes_on_as_a_loop(
    tokens: list[int], limit: int, drafts: list[int]
) -> None:
    sequence = sequence_of(tokens)
    assert len(drafts) == NgramDrafter(shortest=2, longest=4).draft_count(sequence, limit)
    assert drafts == sequence.drafts


def test_the_text_that_is_searched_grows_with_the_sequence() -> None:
    drafter, sequence = NgramDrafter(shortest=1, longest=2), sequence_of([1, 2, 3])
    for token, drafts in ((9, []), (2, [3]), (3, [9]), (8, []), (3, [9])):
        sequence.tokens.append(token)
        drafter.draft_count(sequence, 1)
        assert drafts == sequence.drafts


def test_a_sequence_that_has_ended_leaves_nothing_behind() -> None:
    drafter, sequence = NgramDrafter(shortest=1, longest=2), sequence_of([1, 2, 3])
    drafter.draft_count(sequence, 1)
    assert len(drafter._texts) == 1
    del sequence
    assert len(drafter._texts) == 0
