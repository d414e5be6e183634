"""The tree of Medusa candidates: the likeliest paths, and accuracies that are read or refused."""

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from workers.engine.errors import CheckpointInvalid
from workers.engine.speculative.medusa_tree import ACCURACIES, TYPICAL, best_tree, read_accuracies


def expected_drafts(accuracies: list[list[float]], paths: list[tuple[int, ...]]) -> float:
    return sum(math.prod(accuracies[head][rank] for head, rank in enumerate(path)) for path in paths)


@pytest.mark.parametrize("seed", range(10))
def test_no_tree_of_so_many_drafts_accepts_more(seed: int) -> None:
    chance = random.Random(seed)
    accuracies = [sorted((chance.random() / 3 for _ in range(3)), reverse=True) for _ in range(3)]
    drafts = chance.randint(1, 12)
    tree = best_tree(accuracies, drafts)
    ranks = [rank for _, rank in tree.candidates]
    found = [tuple(ranks[number] for number in path) for path in tree.shape.paths]
    assert len(set(found)) == drafts
    assert all(
        (head, rank) == (len(path) - 1, path[-1])
        for (head, rank), path in zip(tree.candidates, found, strict=True)
    )
    # The likeliest paths of all; whatever the tree, it has no likelier ones.
    every = [path for length in (1, 2, 3) for path in itertools.product(range(3), repeat=length)]
    best = sorted((expected_drafts(accuracies, [path]) for path in every), reverse=True)[:drafts]
    assert expected_drafts(accuracies, found) == pytest.approx(sum(best))


def test_heads_that_are_nearly_always_right_give_a_chain() -> None:
    tree = best_tree([[0.95, 0.02], [0.9, 0.03], [0.9, 0.03]], 3)
    assert tree.shape.is_chain
    assert tree.heads == 3
    assert best_tree([[0.5]], 9).candidates == ((0, 0),)


def test_a_head_that_is_rarely_right_is_left_out() -> None:
    tree = best_tree([[0.4, 0.3, 0.2], [0.01, 0.01]], 3)
    assert (tree.heads, tree.shape.parents) == (1, (-1, -1, -1))


def test_accuracies_that_are_zero_still_give_a_tree() -> None:
    assert best_tree([[0.0, 0.0], [0.0]], 4).heads >= 1


def test_heads_without_accuracies_get_typical_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    first, second = read_accuracies(tmp_path, heads=2)
    assert list(first) == list(TYPICAL)
    assert all(later < earlier for later, earlier in zip(second, first, strict=True))


@pytest.mark.parametrize(
    "wrong",
    [[[0.5]], [[0.5], []], [[0.5], [1.5]], [[0.2, 0.3], [0.5]], "0.5", [[0.5], [True]], [[0.1] * 11, [0.5]]],
)
def test_accuracies_that_are_none_are_refused(wrong: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({ACCURACIES: wrong}), encoding="utf-8")
    with pytest.raises(CheckpointInvalid, match="2 lists, one for each head"):
        read_accuracies(tmp_path, heads=2)
