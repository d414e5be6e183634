"""The parts of speculation one by one: looking up, pacing, keeping track of the draft's KV, settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.engine.config.speculation_config import SpecConfig
from workers.engine.errors import ConfigInvalid
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockTable
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.scheduler.pace import (
    PROBE_STEPS,
    PROBE_TOKENS,
    Pace,
    best_length,
    expected_tokens,
    row_cost,
    speed_up,
)
from workers.engine.scheduler.sequence import Sequence
from workers.engine.speculative.draft_kv import DraftKV
from workers.engine.speculative.ngram import NgramDrafter, continuation

SIZE = 4


def looked_up(tokens: list[int], shortest: int, longest: int) -> int | None:
    """The same by trying everything: longest end first, earliest place first."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for begin in range(len(tokens) - length):
            if tokens[begin : begin + length] == tokens[-length:]:
                return begin + length
    return None


@settings(max_examples=500, deadline=None)
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
    assert len(drafts) == NgramDrafter(shortest=2, longest=4).ready(sequence, limit)
    assert drafts == sequence.drafts


def test_the_text_that_is_searched_grows_with_the_sequence() -> None:
    drafter, sequence = NgramDrafter(shortest=1, longest=2), sequence_of([1, 2, 3])
    for token, drafts in ((9, []), (2, [3]), (3, [9]), (8, []), (3, [9])):
        sequence.tokens.append(token)
        drafter.ready(sequence, 1)
        assert drafts == sequence.drafts


def test_a_sequence_that_has_ended_leaves_nothing_behind() -> None:
    drafter, sequence = NgramDrafter(shortest=1, longest=2), sequence_of([1, 2, 3])
    drafter.ready(sequence, 1)
    assert len(drafter._texts) == 1
    del sequence
    assert len(drafter._texts) == 0


@pytest.mark.parametrize(("drafts", "tokens"), [(0, 1.0), (2, 2.44), (4, 3.3616), (8, 4.32891136)])
def test_tokens_expected_of_a_step(drafts: int, tokens: float) -> None:
    assert tokens == pytest.approx(expected_tokens(0.8, drafts))
    assert expected_tokens(0.8, drafts) == pytest.approx((1 - 0.8 ** (drafts + 1)) / (1 - 0.8))
    assert (expected_tokens(1.0, drafts), expected_tokens(0.0, drafts)) == (drafts + 1, 1)


@settings(max_examples=200, deadline=None)
@given(acceptance=st.floats(0, 1), cost=st.floats(0, 1), most=st.integers(0, 12), better=st.floats(0, 1))
def test_the_best_length_is_best_and_grows_with_acceptance(
    acceptance: float, cost: float, most: int, better: float
) -> None:
    best = best_length(acceptance, cost, most)
    assert 0 <= best <= most
    assert speed_up(acceptance, best, cost) == max(
        speed_up(acceptance, length, cost) for length in range(most + 1)
    )
    assert best_length(max(acceptance, better), cost, most) >= best


def test_a_draft_that_costs_more_than_it_brings_is_not_made() -> None:
    assert (best_length(0.3, 0.31, 8), best_length(0.3, 0.29, 8)) == (0, 1)
    assert best_length(1.0, 0.9, 8) == 8


def test_a_row_costs_more_in_a_larger_batch() -> None:
    # Time 9 + B: one row more for each of B adds B of it.
    for batch in (1, 3, 9, 100):
        assert row_cost(0.1, batch) == pytest.approx(batch / (9 + batch))
    assert row_cost(0.0, 100) == 0


def test_a_pace_falls_to_zero_probes_now_and_then_and_recovers() -> None:
    pace = Pace()
    assert pace.length(0.2, 8) > 1
    for _ in range(30):
        pace.learn(4, 0)
    for _ in range(2):
        assert [pace.length(0.2, 8) for _ in range(PROBE_STEPS - 1)] == [0] * (PROBE_STEPS - 1)
        assert pace.length(0.2, 8) == PROBE_TOKENS
        pace.learn(PROBE_TOKENS, 0)
    while not pace.length(0.2, 8):
        pace.learn(PROBE_TOKENS, PROBE_TOKENS)
    for _ in range(40):
        pace.learn(4, 4)
    assert pace.length(0.2, 8) == 8


def test_drafts_behind_a_rejected_one_teach_nothing() -> None:
    first, second = Pace(), Pace()
    first.learn(8, 1)
    second.learn(2, 1)
    assert first.acceptance == second.acceptance


class Held:
    """A table, its tree, and the draft's notes on it."""

    def __init__(self, length: int) -> None:
        self.tree = PrefixTree(BlockPool(8, SIZE))
        self.notes = DraftKV(SIZE)
        self.tokens = list(range(length))
        self.table = self.open()

    def open(self) -> BlockTable:
        table = BlockTable(self.tree, self.tokens, "")
        table.grow(len(self.tokens))
        return table

    @property
    def held(self) -> int:
        return self.notes.held(self.table)


def test_positions_are_held_up_to_the_first_gap() -> None:
    kv = Held(11)
    assert kv.held == 0
    kv.notes.fill(kv.table, 0, 6)
    assert kv.held == 6
    kv.notes.fill(kv.table, 6, 11)
    assert kv.held == 11


@pytest.mark.parametrize("end", range(12))
def test_what_was_held_for_rejected_drafts_is_cut_off(end: int) -> None:
    kv = Held(11)
    kv.notes.fill(kv.table, 0, 9)
    kv.notes.cut(kv.table, end)
    assert kv.held == min(9, end)


def test_a_prefix_hit_finds_what_the_draft_held_there() -> None:
    kv = Held(11)
    kv.notes.fill(kv.table, 0, 11)
    kv.table.commit(kv.tokens, 11)
    kv.table.close()
    again = kv.open()
    assert again.shared_tokens == 8
    assert kv.notes.held(again) == 8


def test_a_block_in_new_hands_holds_nothing() -> None:
    kv = Held(11)
    kv.notes.fill(kv.table, 0, 11)
    old = set(kv.table.ids)
    kv.table.close()
    again = kv.open()
    assert old & set(again.ids)
    assert kv.notes.held(again) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "magic"}, "method must be one of ngram, draft_model, early_exit, medusa"),
        ({"method": "ngram", "num_tokens": 0}, "between 1 and 32, not 0"),
        ({"method": "ngram", "num_tokens": 33}, "between 1 and 32, not 33"),
        ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup_min 5 and prompt_lookup_max 4"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min 0"),
        ({"method": "ngram", "model": Path("x")}, "ngram takes no speculative model"),
        ({"method": "ngram", "exit_layer": 2}, "early_exit, and no other"),
        ({"method": "early_exit"}, "early_exit, and no other"),
        ({"method": "early_exit", "exit_layer": 0}, "at least 1, not 0"),
        ({"method": "draft_model"}, "draft_model needs a speculative model"),
        ({"method": "medusa"}, "medusa needs a speculative model"),
        ({"method": "ngram", "batch_size_max": 0}, "batch size must be at least 1"),
        ({"method": "ngram", "verify_cost": -0.1}, "verify_cost must be at least 0 and below 1"),
        ({"method": "ngram", "verify_cost": 1.0}, "verify_cost must be at least 0 and below 1"),
        ({"method": "ngram", "verify_cost": float("nan")}, "verify_cost must be at least 0"),
        ({"method": "ngram", "draft_sample_method": "best"}, "must be one of probabilistic, greedy"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        SpecConfig(**given)
