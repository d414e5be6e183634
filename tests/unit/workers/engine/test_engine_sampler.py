"""Sampling against a plain numpy reference, and chance that depends on seed and position alone."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.engine.errors import RequestRefused
from workers.engine.sample.params import SamplingParams
from workers.engine.sample.rng import uniform
from workers.engine.sample.sampler import Draw, sample


def kept_weights(logits: np.ndarray, draw: Draw) -> np.ndarray:
    """Unnormalised probability of each token: temperature, then top-k, then top-p over what is left."""
    scores = logits.astype(np.float64) / draw.temperature
    order = np.argsort(-scores, kind="stable")
    kept = order[: draw.top_k or len(order)]
    probabilities = np.exp(scores - scores.max())
    total = probabilities[kept].sum()
    weights, cumulated = np.zeros(len(scores)), 0.0
    for token in kept:
        if cumulated >= draw.top_p and cumulated > 0:
            break
        weights[token] = probabilities[token]
        cumulated += probabilities[token] / total
    return weights


def reference(logits: np.ndarray, draw: Draw) -> int:
    if draw.temperature is None:
        return int(np.argmax(logits))
    weights = kept_weights(logits, draw)
    scores = logits.astype(np.float64) / draw.temperature
    # Filtered rows are drawn likeliest first, open rows in the order of the vocabulary.
    order = np.argsort(-scores, kind="stable") if draw.filters else np.arange(len(scores))
    cumulated, target = 0.0, draw.uniform * weights.sum()
    for token in order:
        cumulated += weights[token]
        if cumulated > target:
            return int(token)
    return int(np.flatnonzero(weights)[-1])


Draws = st.builds(
    Draw,
    temperature=st.one_of(st.none(), st.floats(0.05, 4.0)),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.0, 1.0),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10_000), draws=st.lists(Draws, min_size=1, max_size=6))
def test_every_row_is_drawn_as_the_plain_reference_draws_it(seed: int, draws: list[Draw]) -> None:
    logits = np.random.default_rng(seed).normal(size=(len(draws), 11)).astype(np.float32) * 3
    tokens = sample(torch.from_numpy(logits), draws)
    for token, row, draw in zip(tokens, logits, draws, strict=True):
        if token != reference(row, draw):
            # Only where the target falls between two tokens to the last bit may rounding decide.
            nudged = {
                reference(row, Draw(temperature=draw.temperature, top_k=draw.top_k, top_p=p, uniform=u))
                for u in (draw.uniform - 1e-12, min(draw.uniform + 1e-12, 1 - 2**-53))
                for p in (draw.top_p - 1e-12, draw.top_p, draw.top_p + 1e-12)
            }
            assert token in nudged


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), draws=st.lists(Draws, min_size=2, max_size=6))
def test_a_row_gets_the_same_token_alone_and_in_a_batch(seed: int, draws: list[Draw]) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(draws), 40)).astype(np.float32))
    alone = [sample(logits[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]
    assert alone == sample(logits, draws)


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    assert sample(torch.tensor([[0.0, 5.0, 5.0, 1.0]]), [Draw(temperature=None)]) == [1]


@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-53])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.5), (1, 1.0), (0, 0.0)])
def test_the_ends_of_chance_never_pick_a_token_that_is_ruled_out(
    extreme: float, top_k: int, top_p: float
) -> None:
    logits = torch.tensor([[2.0, float("-inf"), 1.0, 0.5, float("-inf")]])
    draw = Draw(temperature=1.0, top_k=top_k, top_p=top_p, uniform=extreme)
    weights = kept_weights(logits[0].numpy(), draw)
    assert weights[sample(logits, [draw])[0]] > 0


def test_top_p_zero_and_top_k_one_are_greedy() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    best = [int(logits.argmax())]
    for draw in (
        Draw(temperature=1.0, top_p=0.0, uniform=0.99),
        Draw(temperature=1.0, top_k=1, uniform=0.99),
    ):
        assert best == sample(logits, [draw])


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    draws = [Draw(temperature=1.0, uniform=uniform(5, position)) for position in range(20_000)]
    counts = Counter(sample(logits.expand(len(draws), -1), draws))
    wanted = logits.softmax(-1)[0] * len(draws)
    # Chi-square with two degrees of freedom: above 27.6 less than once in a million.
    assert (
        sum((counts[token] - float(wanted[token])) ** 2 / float(wanted[token]) for token in range(3)) < 27.6
    )


def test_chance_is_uniform_and_neighbours_are_not_alike() -> None:
    drawn = np.array([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01
    assert len(np.unique(drawn)) == drawn.size
    for a, b in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03


def test_chance_is_the_same_on_every_machine() -> None:
    assert [uniform(0, 0), uniform(-3, 7)] == [0.8833108082136426, 0.7808029457402889]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("top_p", float("nan")),
        ("top_k", -2),
        ("stop", ("x", "")),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestRefused) as refused:
        SamplingParams(**{"max_tokens": 1, field: value})
    assert field == refused.value.param


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-300])
def test_a_temperature_next_to_zero_is_greedy(temperature: float) -> None:
    assert SamplingParams(max_tokens=1, temperature=temperature).greedy


def test_pairs_of_seed_and_position_do_not_collide() -> None:
    pairs = itertools.product(range(-50, 50), range(50))
    assert len({uniform(seed, position) for seed, position in pairs}) == 5000
