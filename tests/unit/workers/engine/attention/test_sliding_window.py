"""Sliding windows: the tokens are those of transformers, and what is behind the window is given back."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.unit.workers.engine.conftest import finish_all, greedy
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockTable
from workers.engine.kv.prefix_tree import EVICTED, PrefixTree
from workers.engine.request import Request
from workers.engine.tiny_checkpoint import build

WINDOW = 24
NEW_TOKENS = 30
LENGTHS = (1, 5, 23, 24, 25, 48, 70, 100)
LENGTHS_BY_SINGLE_TOKENS = LENGTHS[:6]
"""Of a prompt whose tokens are computed one a step, two windows are enough."""
BUDGETS, BLOCK_SIZES = (1, 7, 48, 100_000), (1, 4, 16)
"""One kind runs with each pair of these, the others with each budget and each block size."""
SLIDING = {
    "every layer": {"architecture": "mistral", "kv_heads": 2},
    "every layer, one key head": {"architecture": "mistral", "kv_heads": 1},
    "the upper half": {"architecture": "qwen2", "kv_heads": 2},
    "the upper half, normed": {"architecture": "qwen3", "kv_heads": 2},
}


def prompts() -> list[list[int]]:
    chance = random.Random(3)
    return [[chance.randrange(4, 500) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="session")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("sliding")

    def directory(kind: str, window: int = WINDOW) -> Path:
        shape = {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 96, "vocab": 512, "context": 512}
        name = kind.replace(" ", "-") + str(window)
        return build(root / name, **shape, **SLIDING[kind], init=0.3, window=window)  # type: ignore[arg-type]

    return directory


@pytest.fixture(scope="session")
def expected(sliding: Callable[..., Path]) -> Callable[[str], list[list[int]]]:
    known: dict[str, list[list[int]]] = {}

    def answers(kind: str) -> list[list[int]]:
        if kind not in known:
            model = AutoModelForCausalLM.from_pretrained(sliding(kind), dtype=torch.float32)
            known[kind] = [
                model.generate(
                    torch.tensor([prompt]),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=3,
                )[0][len(prompt) :].tolist()
                for prompt in prompts()
            ]
        return known[kind]

    return answers


def engine_of(path: Path, **settings: Any) -> Engine:
    return Engine.load(EngineConfig(**{"model": path, "seed": 0, "kv_tokens": 2048, **settings}))


def requests(name: str) -> list[Request]:
    return [
        Request(id=f"{name}{n}", prompt=prompt, params=greedy(NEW_TOKENS))
        for n, prompt in enumerate(prompts())
    ]


@pytest.mark.parametrize(
    ("kind", "budget", "block_size"),
    [
        *itertools.product(["every layer"], BUDGETS, BLOCK_SIZES),
        *(
            (kind, budget, BLOCK_SIZES[(number + place) % 3])
            for number, kind in enumerate(SLIDING)
            for place, budget in enumerate(BUDGETS)
            if kind != "every layer"
        ),
    ],
)
def test_tokens_beyond_the_window_are_those_of_transformers_cold_and_from_the_cache(
    kind: str,
    budget: int,
    block_size: int,
    sliding: Callable[..., Path],
    expected: Callable[[str], list[list[int]]],
) -> None:
    engine = engine_of(sliding(kind), chunk_tokens=budget, block_size=block_size)
    lengths = LENGTHS_BY_SINGLE_TOKENS if budget == 1 else LENGTHS
    for name in ("cold", "warm"):
        answers = finish_all(engine, requests(name)[: len(lengths)])
        assert expected(kind)[: len(lengths)] == [answer.tokens for answer in answers.values()]
        wanted = [0 if name == "cold" else (length - 1) // block_size * block_size for length in lengths]
        assert wanted == [answer.cached_tokens for answer in answers.values()]


def test_the_window_makes_a_difference(
    sliding: Callable[..., Path], expected: Callable[[str], list[list[int]]]
) -> None:
    answers = finish_all(engine_of(sliding("every layer", 0)), requests("a"))
    assert expected("every layer") != [answer.tokens for answer in answers.values()]


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_window_over_quantised_kv_is_the_same_however_the_prompt_was_cut(
    name: Any, sliding: Callable[..., Path]
) -> None:
    whole, cut = (
        finish_all(engine_of(sliding("every layer"), kv_dtype=name, chunk_tokens=budget), requests("a"))
        for budget in (512, 9)
    )
    assert [a.tokens for a in whole.values()] == [a.tokens for a in cut.values()]


def test_a_long_sequence_holds_no_more_blocks_than_the_window_and_one(sliding: Callable[..., Path]) -> None:
    engine = engine_of(sliding("every layer"), block_size=4, chunk_tokens=8)
    engine.submit(Request(id="a", prompt=prompts()[-1], params=greedy(200)))
    held = []
    while engine.has_work:
        engine.step()
        held += [sum(map(bool, sequence.blocks.ids)) for sequence in engine.scheduler.running]
    # At most ceil(window / block) + 1.
    assert max(held) == WINDOW // 4 + 1


def test_a_model_with_one_full_layer_gives_nothing_back(sliding: Callable[..., Path]) -> None:
    engine = engine_of(sliding("the upper half"), block_size=4)
    assert engine.tree.window is None
    engine.submit(Request(id="a", prompt=prompts()[-1], params=greedy(20)))
    engine.step()
    assert all(engine.scheduler.running[0].blocks.ids)


def test_many_long_answers_in_a_small_pool_are_still_those_of_transformers(
    sliding: Callable[..., Path], expected: Callable[[str], list[list[int]]]
) -> None:
    # Too small for the caches of all: blocks behind the window are evicted from the middle of paths.
    engine = engine_of(sliding("every layer"), block_size=4, kv_tokens=132, chunk_tokens=16)
    for name in ("first", "second", "third"):
        answers = finish_all(engine, requests(name))
        assert expected("every layer") == [answer.tokens for answer in answers.values()]
    assert any(node.block == EVICTED for node in engine.tree.nodes())


SIZE = 4


def windowed(capacity: int, window: int) -> PrefixTree:
    return PrefixTree(BlockPool(capacity, SIZE), window=window)


def computed(tree: PrefixTree, tokens: list[int]) -> BlockTable:
    table = BlockTable(tree, tokens, "")
    while table.computed < len(tokens):
        end = min(len(tokens), table.computed + SIZE)
        table.grow(end)
        table.commit(tokens, end)
    return table


def test_blocks_before_the_window_stay_in_the_tree_until_room_is_needed() -> None:
    tree = windowed(6, window=6)
    table = computed(tree, list(range(20)))
    assert [bool(block) for block in table.ids] == [False, False, False, True, True]
    assert (tree.cached_blocks, tree.available_blocks) == (5, 4)
    tree.check()


def test_a_prefix_is_found_again_when_only_its_end_is_left() -> None:
    tree = windowed(6, window=6)
    computed(tree, list(range(20))).close()
    # The idle blocks go in the order in which they were given back: from the beginning.
    taken = tree.allocate(4)
    assert (tree.match_depth(list(range(21)), ""), tree.match_depth(list(range(12)), "")) == (5, 0)
    table = BlockTable(tree, list(range(21)), "")
    assert (table.computed, [bool(block) for block in table.ids]) == (20, [False, False, False, True, True])
    table.close()
    for block in taken:
        tree.pool.release(block)
    tree.check()


def test_a_node_without_a_block_gets_one_from_the_next_sequence_that_computes_it() -> None:
    tree = windowed(6, window=6)
    computed(tree, list(range(20))).close()
    for block in tree.allocate(4):
        tree.pool.release(block)
    tree.take_events()
    again = computed(tree, list(range(13)))
    # Three were computed again; the fourth and fifth stood all the time.
    assert len(tree.take_events()) == 3
    assert tree.match_depth(list(range(13)), "") == 3
    again.close()
    assert tree.clear()
    assert (tree.cached_blocks, tree.pool.free_blocks, list(tree.nodes())) == (0, 6, [])
