"""Sampling against a plain reference and against transformers; chance that depends on seed and position alone."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from workers.engine.errors import RequestRefused
from workers.engine.sampling.distribution import RANKED_FIRST, distribution
from workers.engine.sampling.logprobs import LogprobReader
from workers.engine.sampling.random_numbers import RandomStream, uniform
from workers.engine.sampling.sampler import draw_tokens, sample_tokens
from workers.engine.sampling.sampling_params import SamplingParams
from workers.engine.sampling.sampling_row import SamplingRow

VOCAB = 24
MASK_BITS = 32


def row(*, chance: float = 0.0, history: dict[str, Any] | None = None, **params: Any) -> SamplingRow:
    return SamplingRow(params=SamplingParams(max_tokens=1000, **params), uniform=chance, **(history or {}))


def bits(tokens: set[int]) -> torch.Tensor:
    word = sum(1 << token for token in tokens)
    return torch.tensor([word - (1 << 32) if word >= 1 << 31 else word], dtype=torch.int32)


def plain(logits: np.ndarray, wanted: SamplingRow) -> np.ndarray:
    """The distribution of one row, token by token, as the documentation of each setting says it."""
    params = wanted.params
    output = [*wanted.tokens[wanted.num_prompt :], *wanted.drafts]
    seen, counts = {*wanted.tokens, *wanted.drafts}, Counter(output)
    scores = logits.astype(np.float64).copy()
    for token in range(len(scores)):
        if wanted.allowed is not None and not int(wanted.allowed[0]) >> token & 1:
            scores[token] = -np.inf
        if token in seen:
            scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
        scores[token] -= counts[token] * params.frequency_penalty
        scores[token] -= (counts[token] > 0) * params.presence_penalty
        scores[token] += params.logit_bias.get(token, 0)
    if len(output) < params.min_tokens:
        ended = scores.copy()
        ended[list(wanted.end_ids)] = -np.inf
        scores = ended if np.isfinite(ended).any() else scores
    if params.greedy:
        return np.eye(len(scores))[np.argmax(scores)]
    scores /= params.temperature
    weights = np.exp(scores - scores.max())
    order = np.argsort(-scores, kind="stable")
    kept = order[: params.top_k] if params.top_k > 0 else order
    total, cumulated, nucleus = weights[kept].sum(), 0.0, []
    for token in kept:
        if not nucleus or cumulated < params.top_p:
            nucleus.append(token)
        cumulated += weights[token] / total
    result = np.zeros(len(scores))
    result[nucleus] = weights[nucleus]
    result[result < params.min_p * result.max()] = 0
    return result / result.sum()


Histories = st.fixed_dictionaries(
    {
        "tokens": st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=12),
        "num_prompt": st.integers(0, 3),
        "drafts": st.lists(st.integers(0, VOCAB - 1), max_size=3),
        "end_ids": st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
        "allowed": st.none() | st.sets(st.integers(0, VOCAB - 1), min_size=1).map(bits),
    }
)
Rows = st.builds(
    row,
    chance=st.floats(0.0, 1.0, exclude_max=True),
    history=Histories,
    temperature=st.one_of(st.just(0.0), st.floats(0.05, 4.0)),
    top_k=st.sampled_from([-1, 0, 0, 1, 2, 5, 23, 24, 100]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 2.0]),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.3, 1.5]),
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 2.0, 100.0]), max_size=3
    ),
    min_tokens=st.integers(0, 12),
)


@given(seed=st.integers(0, 10_000), rows=st.lists(Rows, min_size=1, max_size=6))
def test_every_row_has_the_distribution_of_the_plain_reference(seed: int, rows: list[SamplingRow]) -> None:
    # Steps of an eighth: equal scores come up, and no rounding decides where a nucleus ends.
    logits = np.random.default_rng(seed).integers(-24, 24, size=(len(rows), VOCAB)) / 8
    found = distribution(torch.from_numpy(logits.astype(np.float32)), rows).numpy()
    for got, of, wanted in zip(found, logits, rows, strict=True):
        np.testing.assert_allclose(got, plain(of.astype(np.float32), wanted), atol=2e-6)


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(1, VOCAB),
    top_p=st.floats(0.05, 0.99),
    min_p=st.floats(0.01, 0.9),
    repetition=st.floats(0.3, 3.0),
)
def test_the_order_of_the_filters_is_that_of_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, repetition: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, VOCAB, generator=generator) * 3
    tokens = torch.randint(VOCAB, (7,), generator=generator).tolist()
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(repetition),
            TemperatureLogitsWarper(temperature),
            TopKLogitsWarper(top_k),
            TopPLogitsWarper(top_p),
            MinPLogitsWarper(min_p),
        ]
    )(torch.tensor([tokens]), logits.double()).softmax(-1)
    ours = row(
        history={"tokens": tokens, "num_prompt": 4},
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
    )
    np.testing.assert_allclose(distribution(logits, [ours]).numpy(), theirs.numpy(), atol=1e-6)


@given(seed=st.integers(0, 10_000), rows=st.lists(Rows, min_size=2, max_size=6))
def test_a_row_gets_the_same_token_alone_and_in_a_batch(seed: int, rows: list[SamplingRow]) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(rows), VOCAB)).astype(np.float32))
    alone = [sample_tokens(logits[place : place + 1].clone(), [one])[0] for place, one in enumerate(rows)]
    assert alone == sample_tokens(logits, rows)


@given(seed=st.integers(0, 10_000), rows=st.lists(Rows, min_size=1, max_size=6))
def test_a_token_is_drawn_from_the_distribution_by_its_own_chance(seed: int, rows: list[SamplingRow]) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(rows), VOCAB)).astype(np.float32))
    weights = distribution(logits.clone(), rows)
    tokens = sample_tokens(logits, rows)
    assert all(weights[place, token] > 0 for place, token in enumerate(tokens))
    assert draw_tokens(weights, [one.uniform for one in rows]).tolist() == tokens


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.3},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 1},
        {"top_k": RANKED_FIRST - 1},
        {"top_k": RANKED_FIRST},
        {"top_k": RANKED_FIRST + 1, "top_p": 0.9},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.1},
        {"top_k": 7000, "top_p": 0.2},
    ],
)
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 6.0])
def test_a_large_vocabulary_is_cut_as_if_all_of_it_were_ranked(params: dict[str, Any], scale: float) -> None:
    logits = torch.randn(2, 6000, generator=torch.Generator().manual_seed(1))
    # Coarse steps, so that there are many ties, also where the cut falls; scale 0 makes all of them equal.
    logits = (logits * 4).round() / 4 * scale
    found = distribution(logits.clone(), [row(**params), row(**params, temperature=0.3)]).numpy()
    for got, of, temperature in zip(found, logits.numpy(), (1.0, 0.3), strict=True):
        np.testing.assert_allclose(got, plain(of, row(**params, temperature=temperature)), atol=1e-9)


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    assert sample_tokens(torch.tensor([[0.0, 5.0, 5.0, 1.0]]), [row(temperature=0.0)]) == [1]


@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-53])
@pytest.mark.parametrize(
    "params",
    [{}, {"top_k": 3}, {"top_p": 0.5}, {"top_k": 1}, {"top_p": 0.0}, {"min_p": 0.4}, {"min_p": 1.0}],
)
def test_the_ends_of_chance_never_pick_a_token_that_is_ruled_out(
    extreme: float, params: dict[str, Any]
) -> None:
    logits = torch.tensor([[2.0, float("-inf"), 1.0, 0.5, float("-inf")]])
    wanted = row(chance=extreme, **params)
    weights = plain(logits[0].numpy(), wanted)
    assert weights[sample_tokens(logits, [wanted])[0]] > 0


@pytest.mark.parametrize("params", [{"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}])
def test_the_narrowest_filters_are_greedy(params: dict[str, Any]) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    assert [int(logits.argmax())] == sample_tokens(logits, [row(chance=0.99, **params)])


def test_a_plain_row_does_not_depend_on_the_parameters_of_its_neighbour() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    before = logits[1].clone()
    asking = row(history={"tokens": [1, 2, 3], "allowed": bits({1, 5})}, presence_penalty=1.0)
    distribution(logits, [asking, row()])
    assert torch.equal(before, logits[1])


def test_a_mask_over_several_words_rules_out_exactly_its_zeros() -> None:
    allowed = {0, 31, 32, 63, 64, 69}
    words = torch.cat([bits({t - 32 * w for t in allowed if t // 32 == w}) for w in range(3)])
    weights = distribution(torch.zeros(1, 70), [row(history={"allowed": words})])
    assert set(weights[0].nonzero().flatten().tolist()) == allowed


def test_a_grammar_that_allows_only_the_end_may_end_early() -> None:
    early = row(
        history={"end_ids": frozenset({3}), "allowed": bits({3}), "tokens": [1]},
        min_tokens=5,
        temperature=0.0,
    )
    assert sample_tokens(torch.zeros(1, VOCAB), [early]) == [3]


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    rows = [row(chance=uniform(5, position)) for position in range(20_000)]
    counts = Counter(sample_tokens(logits.repeat(len(rows), 1), rows))
    wanted = logits.softmax(-1)[0] * len(rows)
    # Chi-square with two degrees of freedom: above 27.6 less than once in a million.
    assert (
        sum((counts[token] - float(wanted[token])) ** 2 / float(wanted[token]) for token in range(3)) < 27.6
    )


def test_logprobs_are_of_the_raw_logits_whatever_the_settings() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3))
    wanted = logits.double().log_softmax(-1)
    rows = [
        row(),
        row(chance=0.5, logprobs=0, logit_bias={4: 100.0}),
        row(logprobs=3, temperature=0.1, top_k=1),
    ]
    reader = LogprobReader(logits, rows)
    tokens = sample_tokens(logits, rows)
    assert reader.read([0], tokens[:1]) == ()
    second, third = reader.read([1, 2], tokens[1:])
    assert (second.token, second.top) == (4, ())
    assert second.logprob == pytest.approx(float(wanted[1, 4]), abs=1e-5)
    best = wanted[2].topk(3)
    assert [token for token, _ in third.top] == best.indices.tolist()
    assert [value for _, value in third.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert third.logprob == third.top[0][1]


def test_chance_is_uniform_and_neighbours_are_not_alike() -> None:
    for stream in RandomStream:
        drawn = np.array(
            [[uniform(seed, position, stream) for position in range(200)] for seed in range(200)]
        )
        assert drawn.min() >= 0
        assert drawn.max() < 1
        assert abs(drawn.mean() - 0.5) < 0.01
        assert len(np.unique(drawn)) == drawn.size
        for a, b in ((drawn[:, :-1], drawn[:, 1:]), (drawn[:-1], drawn[1:])):
            assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03


def test_streams_of_one_position_have_nothing_to_do_with_each_other() -> None:
    drawn = np.array([[uniform(7, position, stream) for position in range(5000)] for stream in RandomStream])
    alike = np.corrcoef(drawn) - np.eye(len(RandomStream))
    assert np.abs(alike).max() < 0.06


def test_chance_is_the_same_on_every_machine() -> None:
    assert [uniform(0, 0), uniform(-3, 7)] == [0.8833108082136426, 0.7808029457402889]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("min_tokens", 2),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("top_p", float("nan")),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 1e-40),
        ("repetition_penalty", 1e40),
        ("repetition_penalty", float("inf")),
        ("repetition_penalty", float("nan")),
        ("presence_penalty", 2.1),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", -2.1),
        ("logit_bias", {1: 100.1}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("logprobs", -1),
        ("logprobs", 21),
        ("stop", ("x", "")),
        ("stop_token_ids", frozenset(range(257))),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestRefused) as refused:
        SamplingParams(**{"max_tokens": 1, field: value})
    assert field == refused.value.param


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_token_that_the_model_does_not_have_is_refused_by_name(field: str, token: int) -> None:
    value: Any = {token: 1.0} if field == "logit_bias" else frozenset({token})
    with pytest.raises(RequestRefused) as refused:
        SamplingParams(**{"max_tokens": 1, field: value}).check_token_ids(VOCAB)
    assert field == refused.value.param


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-300])
def test_a_temperature_next_to_zero_is_greedy(temperature: float) -> None:
    assert SamplingParams(max_tokens=1, temperature=temperature).greedy


def test_pairs_of_seed_and_position_do_not_collide() -> None:
    pairs = itertools.product(range(-50, 50), range(50))
    assert len({uniform(seed, position) for seed, position in pairs}) == 5000
