"""The draft length of speculation: how many tokens are worth drafting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.scheduler.draft_length import (
    PROBE_STEPS,
    PROBE_TOKENS,
    AdaptiveDraftLength,
    best_length,
    expected_tokens,
    row_cost,
    speed_up,
)


@pytest.mark.parametrize(("drafts", "tokens"), [(0, 1.0), (2, 2.44), (4, 3.3616), (8, 4.32891136)])
def test_tokens_expected_of_a_step(drafts: int, tokens: float) -> None:
    assert tokens == pytest.approx(expected_tokens(0.8, drafts))
    assert expected_tokens(0.8, drafts) == pytest.approx((1 - 0.8 ** (drafts + 1)) / (1 - 0.8))
    assert (expected_tokens(1.0, drafts), expected_tokens(0.0, drafts)) == (drafts + 1, 1)


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
    pace = AdaptiveDraftLength()
    assert pace.choose(0.2, 8) > 1
    for _ in range(30):
        pace.record(4, 0)
    for _ in range(2):
        assert [pace.choose(0.2, 8) for _ in range(PROBE_STEPS - 1)] == [0] * (PROBE_STEPS - 1)
        assert pace.choose(0.2, 8) == PROBE_TOKENS
        pace.record(PROBE_TOKENS, 0)
    while not pace.choose(0.2, 8):
        pace.record(PROBE_TOKENS, PROBE_TOKENS)
    for _ in range(40):
        pace.record(4, 4)
    assert pace.choose(0.2, 8) == 8


def test_drafts_behind_a_rejected_one_teach_nothing() -> None:
    first, second = AdaptiveDraftLength(), AdaptiveDraftLength()
    first.record(8, 1)
    second.record(2, 1)
    assert first.acceptance == second.acceptance
