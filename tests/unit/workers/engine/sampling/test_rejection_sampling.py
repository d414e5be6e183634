"""The rule that accepts drafts gives exactly the model's distribution: every draft, every outcome, K + 2 deep.

`verify` is a function of two tables and of chances in [0, 1). For each draft it is piecewise constant in each
chance, so its outcomes can be measured, without being told the rule, by bisection for the places where it changes.
The probabilities of rounds are put together along all texts and compared with the model's own: no sampling, and no
tolerance but rounding. Then wrong rules are put in its place, and each is found.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.sampling.rejection_sampling import count_agreed, residual_weights, verify_drafts
from workers.engine.sampling.sampler import draw_tokens

Text = tuple[int, ...]
Rule = Callable[..., list[Text]]
LARGEST = 1 - 2**-53
BISECTIONS = 53


class Tables:
    """Two models over all texts up to a length: what follows in each, zeros among it."""

    def __init__(self, vocab: int, length: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.vocab = vocab
        self.p: dict[Text, np.ndarray] = {}
        self.q: dict[Text, np.ndarray] = {}
        for size in range(length):
            for text in itertools.product(range(vocab), repeat=size):
                self.p[text] = self._row(chance)
                # One row in four is the same in both: then every draft has to stand.
                self.q[text] = self.p[text] if chance.random() < 0.25 else self._row(chance)

    def _row(self, chance: np.random.Generator) -> np.ndarray:
        weights = chance.gamma(0.7, size=self.vocab) * (chance.random(self.vocab) < 0.7)
        weights[chance.integers(self.vocab)] += 0.1
        return weights / weights.sum()


@dataclass(frozen=True)
class Round:
    """One guess after one text; `p` and `q` have a row for each place, the last one of `q` is zero."""

    text: Text
    guess: Text
    weight: float
    p: torch.Tensor
    q: torch.Tensor


def rounds(tables: Tables, text: Text, drafts: int) -> Iterator[Round]:
    """Every guess that can follow a text."""
    for guess in itertools.product(range(tables.vocab), repeat=drafts):
        offered = [tables.q[text + guess[:place]] for place in range(drafts)]
        weight = float(np.prod([row[token] for row, token in zip(offered, guess, strict=True)]))
        if weight:
            p = np.array([tables.p[text + guess[:place]] for place in range(drafts + 1)])
            q = np.array([*offered, np.zeros(tables.vocab)])
            yield Round(text, guess, weight, torch.tensor(p), torch.tensor(q))


@dataclass(frozen=True)
class Question:
    """Of one round: does the rule say yes for a chance this small, all other chances being fixed?"""

    of: Round
    accept: Callable[[float], list[float]]
    final: Callable[[float], float]
    says_yes: Callable[[Text], bool]


def edges(rule: Rule, questions: list[Question]) -> list[float]:
    """For each question the chance up to which the answer is yes: all are bisected together."""
    if not questions:
        return []
    p, q = (torch.cat([getattr(question.of, name) for question in questions]) for name in "pq")
    guesses = [list(question.of.guess) for question in questions]

    def ask(chances: list[float]) -> list[bool]:
        accept = [question.accept(u) for question, u in zip(questions, chances, strict=True)]
        final = [
            [question.final(u)] * (len(question.of.guess) + 1)
            for question, u in zip(questions, chances, strict=True)
        ]
        tokens = rule(p, q, guesses, accept, final)
        return [question.says_yes(said) for question, said in zip(questions, tokens, strict=True)]

    low, high = [0.0 if yes else -1.0 for yes in ask([0.0] * len(questions))], [1.0] * len(questions)
    for _ in range(BISECTIONS):
        middle = [max(0.0, (a + b) / 2) for a, b in zip(low, high, strict=True)]
        for place, yes in enumerate(ask(middle)):
            # What is not even true for zero stays at minus one, and is cut off below.
            if low[place] >= 0:
                low[place], high[place] = (middle[place], high[place]) if yes else (low[place], middle[place])
    return [max(0.0, edge) for edge in low]


def stands(of: Round, place: int) -> Question:
    """Is the guess at this place accepted, when all before it are?"""
    behind = len(of.guess) - place - 1
    return Question(
        of,
        accept=lambda u: [0.0] * place + [u] + [LARGEST] * behind,
        final=lambda _: 0.5,
        says_yes=lambda tokens: len(tokens) > place + 1,
    )


def at_most(of: Round, accepted: int, token: int) -> Question:
    """Is the token after so many accepted guesses this one or one before it?"""
    judged = [0.0] * accepted + [LARGEST] * (len(of.guess) - accepted)
    return Question(
        of, accept=lambda _: judged, final=lambda u: u, says_yes=lambda tokens: tokens[-1] <= token
    )


def measured(rule: Rule, asked: list[Round]) -> Iterator[tuple[Text, float]]:
    """Text and outcome of each round, and the probability of the guess times the volume of chances for it."""
    places = [(of, place) for of in asked for place in range(len(of.guess))]
    taken = iter(edges(rule, [stands(of, place) for of, place in places]))
    reached = []
    for of in asked:
        left = of.weight
        for accepted in range(len(of.guess) + 1):
            share = next(taken) if accepted < len(of.guess) else 0.0
            # What only rounding leaves cannot be reached by any chance: there is nothing to measure.
            if 1 - share > 1e-15:
                reached.append((of, accepted, left * (1 - share)))
            left *= share
    vocab = asked[0].p.shape[-1]
    cuts = iter(
        edges(rule, [at_most(of, many, token) for of, many, _ in reached for token in range(vocab - 1)])
    )
    for of, accepted, share in reached:
        cumulated = [0.0, *(next(cuts) for _ in range(vocab - 1)), 1.0]
        for token, (begin, end) in enumerate(itertools.pairwise(cumulated)):
            yield of.text + of.guess[:accepted] + (token,), share * (end - begin)


def largest_error(
    vocab: int, drafts: int, seed: int, rule: Rule = verify_drafts, depth: int | None = None
) -> float:
    """Between the joint distribution of the first K + 2 tokens of speculation and of the model itself."""
    depth = drafts + 2 if depth is None else depth
    tables = Tables(vocab, depth + drafts, seed)
    reached: dict[Text, float] = defaultdict(float, {(): 1.0})
    found: dict[Text, float] = defaultdict(float)
    for size in range(depth):
        begun = [text for text in reached if len(text) == size]
        asked = [of for text in begun for of in rounds(tables, text, drafts)]
        for longer, share in measured(rule, asked) if asked else ():
            part = found if len(longer) >= depth else reached
            part[longer[:depth]] += reached[longer[:size]] * share
    return max(abs(found[text] - probability(tables, text)) for text in texts(vocab, depth))


def texts(vocab: int, length: int) -> Iterator[Text]:
    return itertools.product(range(vocab), repeat=length)


def probability(tables: Tables, text: Text) -> float:
    return float(np.prod([tables.p[text[:place]][token] for place, token in enumerate(text)]))


@pytest.mark.parametrize(
    ("vocab", "drafts"), [(2, 1), (2, 2), (2, 3), (3, 0), (3, 1), (3, 2), (4, 1), (5, 1)]
)
@pytest.mark.parametrize("seed", range(3))
def test_speculation_has_the_distribution_of_the_model_k_plus_two_tokens_deep(
    vocab: int, drafts: int, seed: int
) -> None:
    assert largest_error(vocab, drafts, seed) <= 1e-12


def redrawn(
    p: torch.Tensor, tokens: list[Text], drafts: list[list[int]], final: list[list[float]], back: int
) -> list[Text]:
    """The same, but each last token is drawn from the model's row so many places before its own."""
    firsts = [0, *itertools.accumulate(len(guess) + 1 for guess in drafts)]
    rows = [max(first, first + len(said) - 1 - back) for first, said in zip(firsts, tokens, strict=False)]
    chances = [draws[len(said) - 1] for draws, said in zip(final, tokens, strict=True)]
    return [
        (*said[:-1], last) for said, last in zip(tokens, draw_tokens(p[rows], chances).tolist(), strict=True)
    ]


def without_residual(p: torch.Tensor, q: torch.Tensor, *rest: Any) -> list[Text]:
    """Draws the replacement from p itself, as if nothing had been thrown away."""
    drafts, _, final = rest
    return redrawn(p, verify_drafts(p, q, *rest), drafts, final, back=0)


def bonus_from_the_row_before(p: torch.Tensor, q: torch.Tensor, *rest: Any) -> list[Text]:
    """The token after the last accepted draft comes from the distribution of one place earlier."""
    drafts, _, final = rest
    right = verify_drafts(p, q, *rest)
    wrong = redrawn(p, right, drafts, final, back=1)
    return [
        bad if len(good) == len(guess) + 1 else good
        for good, bad, guess in zip(right, wrong, drafts, strict=True)
    ]


def one_chance_for_both(p: torch.Tensor, q: torch.Tensor, *rest: Any) -> list[Text]:
    """The number that rejected a draft draws its replacement too."""
    drafts, accept, final = rest
    return verify_drafts(
        p, q, drafts, accept, [[*judged, draws[-1]] for judged, draws in zip(accept, final, strict=True)]
    )


def every_draft_stands(p: torch.Tensor, q: torch.Tensor, *rest: Any) -> list[Text]:
    drafts, _, final = rest
    return verify_drafts(p, q, drafts, [[0.0] * len(guess) for guess in drafts], final)


def ratio_upside_down(p: torch.Tensor, q: torch.Tensor, *rest: Any) -> list[Text]:
    """Accepts with min(1, q / p)."""
    drafts, accept, final = rest
    first, turned = 0, []
    for guess, judges in zip(drafts, accept, strict=True):
        row = []
        for place, (token, u) in enumerate(zip(guess, judges, strict=True)):
            stands = u * float(p[first + place, token]) < float(q[first + place, token])
            row.append(0.0 if stands else LARGEST)
        turned.append(row)
        first += len(guess) + 1
    return verify_drafts(p, q, drafts, turned, final)


@pytest.mark.parametrize(
    "wrong",
    [
        without_residual,
        bonus_from_the_row_before,
        one_chance_for_both,
        every_draft_stands,
        ratio_upside_down,
    ],
)
@pytest.mark.parametrize(("vocab", "drafts"), [(3, 1), (3, 2)])
def test_a_wrong_rule_is_found(wrong: Rule, vocab: int, drafts: int) -> None:
    assert largest_error(vocab, drafts, 0, wrong) > 1e-3


def test_a_wrong_bonus_does_not_show_in_the_first_k_tokens() -> None:
    # Why the depth is K + 2: the bonus is the token behind K drafts, so up to there everything looks right.
    shallow = max(largest_error(3, 2, seed, bonus_from_the_row_before, depth=2) for seed in range(2))
    assert shallow <= 1e-12
    assert largest_error(3, 2, 0, bonus_from_the_row_before) > 1e-3


def test_the_likeliest_token_must_not_be_judged_as_if_it_had_been_drawn() -> None:
    tables = Tables(3, 2, seed=1)
    found: dict[Text, float] = defaultdict(float)
    likeliest = (int(tables.q[()].argmax()),)
    asked = [replace(of, weight=1.0) for of in rounds(tables, (), 1) if of.guess == likeliest]
    for longer, share in measured(verify_drafts, asked):
        found[longer[:1]] += share
    assert max(abs(found[text] - probability(tables, text)) for text in texts(3, 1)) > 1e-2


@given(seed=st.integers(0, 10_000), drafts=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_a_sequence_gets_the_same_tokens_alone_and_beside_others(seed: int, drafts: list[int]) -> None:
    chance = np.random.default_rng(seed)
    parts = []
    for count in drafts:
        p = torch.tensor(chance.dirichlet(np.ones(4), size=count + 1))
        q = torch.tensor(np.vstack([chance.dirichlet(np.ones(4), size=count), np.zeros((1, 4))]))
        guess = chance.integers(0, 4, size=count).tolist()
        parts.append((p, q, guess, chance.random(count).tolist(), chance.random(count + 1).tolist()))
    alone = [verify_drafts(p, q, [guess], [accept], [final])[0] for p, q, guess, accept, final in parts]
    p, q, guess, accept, final = zip(*parts, strict=True)
    assert alone == verify_drafts(torch.cat(p), torch.cat(q), guess, accept, final)


def test_a_draft_that_the_model_rules_out_never_stands() -> None:
    p = torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    q = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert verify_drafts(p, q, [[0]], [[0.0]], [[0.0, 0.0]]) == [(1,)]


def test_a_draft_of_the_models_own_distribution_always_stands() -> None:
    p = torch.tensor([[0.3, 0.7], [0.0, 1.0]], dtype=torch.float64)
    q = torch.tensor([[0.3, 0.7], [0.0, 0.0]], dtype=torch.float64)
    assert verify_drafts(p, q, [[0]], [[LARGEST]], [[0.5, 0.5]]) == [(0, 1)]


def test_where_nothing_is_left_over_the_residual_is_the_distribution_itself() -> None:
    row = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    assert torch.equal(residual_weights(row, row), row)


@pytest.mark.parametrize(
    ("drafts", "drawn", "count"),
    [([], [7], 0), ([7], [7, 8], 1), ([7], [6, 8], 0), ([7, 8, 9], [7, 6, 9, 1], 1), ([7, 8], [7, 8], 2)],
)
def test_drafts_stand_up_to_the_first_that_was_not_drawn(
    drafts: list[int], drawn: list[int], count: int
) -> None:
    assert count == count_agreed(drafts, drawn[: len(drafts)])


def test_comparing_with_what_was_drawn_is_the_rule_for_a_certain_draft() -> None:
    """With q = 1 at the draft: accepted with p(d), else p without d."""
    chance = np.random.default_rng(4)
    for _ in range(20):
        p = torch.tensor(chance.dirichlet(np.ones(3), size=2))
        draft = int(chance.integers(3))
        q = torch.zeros(2, 3, dtype=torch.float64)
        q[0, draft] = 1.0
        by_rule: dict[int, float] = defaultdict(float)
        for tokens, share in measured(verify_drafts, [Round((), (draft,), 1.0, p, q)]):
            by_rule[tokens[0]] += share
        assert by_rule == pytest.approx(dict(enumerate(p[0].tolist())), abs=1e-12)
