"""Choices of one prompt share its prefill and its blocks, also the partial one, until one choice writes."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.workers.engine.conftest import Answer, finish_all, greedy
from workers.engine.config.engine_config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockTable
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.request import Request
from workers.engine.sampling.sampling_params import SamplingParams

SIZE = 4
CHOICES = 5
Alone = Callable[[list[Request]], list[list[int]]]


def tree_of(capacity: int) -> PrefixTree:
    return PrefixTree(BlockPool(capacity, SIZE))


def computed(tree: PrefixTree, tokens: list[int]) -> BlockTable:
    table = BlockTable(tree, tokens, "")
    table.grow(len(tokens))
    table.commit(tokens, len(tokens))
    return table


def fork(tree: PrefixTree, leader: BlockTable, tokens: list[int], common: int) -> BlockTable:
    table = BlockTable(tree, tokens, "")
    table.share_tail(leader, common)
    return table


def test_a_fork_takes_no_block() -> None:
    tree = tree_of(8)
    leader = computed(tree, list(range(6)))
    child = fork(tree, leader, list(range(7)), 6)
    assert (child.computed, child.ids) == (6, leader.ids)
    assert tree.pool.capacity - tree.pool.free_blocks == 2


def test_the_first_fork_that_writes_gets_a_copy_and_the_last_one_writes_in_place() -> None:
    tree = tree_of(8)
    leader = computed(tree, list(range(6)))
    tail = leader.ids[1]
    children = [fork(tree, leader, list(range(7)), 6) for _ in range(2)]
    assert [table.missing(7) for table in (leader, *children)] == [1, 1, 1]
    assert children[0].grow(7) == [(tail, children[0].ids[1])]
    assert leader.grow(7) == [(tail, leader.ids[1])]
    assert children[1].grow(7) == []
    assert len({leader.ids[1], children[0].ids[1], children[1].ids[1], tail}) == 3
    for table in (leader, *children):
        table.close()
    tree.check()
    assert tree.available_blocks == 8


def test_a_fork_may_begin_before_the_end_of_what_its_leader_computed() -> None:
    tree = tree_of(8)
    leader = computed(tree, list(range(7)))
    child = fork(tree, leader, [0, 1, 2, 3, 4, 9], 5)
    assert (child.computed, child.missing(6)) == (5, 1)


@pytest.mark.parametrize(("common", "shared"), [(3, 3), (4, 4), (8, 4)])
def test_a_fork_at_the_edge_of_a_block_is_a_match(common: int, shared: int) -> None:
    tree = tree_of(8)
    leader = computed(tree, list(range(9)) if common > 3 else list(range(3)))
    tokens = [*range(min(common, 5)), 77]
    child = fork(tree, leader, tokens, min(common, len(tokens) - 1))
    assert child.computed >= shared
    child.close()
    leader.close()
    tree.check()


def test_a_block_that_is_in_the_tree_is_not_written_by_a_fork() -> None:
    tree = tree_of(8)
    leader = computed(tree, list(range(8)))
    child = fork(tree, leader, [0, 1, 2, 3, 4, 5, 60], 6)
    # The second block is full and cached: its first two tokens are computed again, in a block of the fork's own.
    assert (child.computed, len(child.ids)) == (4, 1)


def prompt(length: int) -> list[int]:
    chance = random.Random(length)
    return [chance.randrange(4, 500) for _ in range(length)]


def choices(name: str, length: int, params: SamplingParams, *, forked: bool) -> list[Request]:
    return [
        Request(
            id=f"{name}{number}",
            prompt=prompt(length),
            params=SamplingParams(
                max_tokens=params.max_tokens,
                temperature=params.temperature,
                seed=100 + number,
                ignore_eos=True,
            ),
            fork_of=f"{name}0" if forked and number else None,
        )
        for number in range(CHOICES)
    ]


@pytest.fixture(scope="module")
def alone(checkpoint: Callable[[str], Path]) -> Alone:
    """What each request is answered alone and from an empty cache; asked once."""
    engine = Engine.load(EngineConfig(model=checkpoint("llama-gqa"), seed=0))
    known: dict[str, list[int]] = {}

    def answer(asked: Request) -> list[int]:
        name = repr((asked.prompt, asked.params))
        if name not in known:
            engine.flush_cache()
            known[name] = finish_all(engine, [asked])[asked.id].tokens
        return known[name]

    return lambda requests: [answer(asked) for asked in requests]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 30, 33, 50])
@pytest.mark.parametrize("budget", [6, 512])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_choices_are_those_of_independent_sequences_with_the_same_seeds(
    length: int, budget: int, temperature: float, load: Callable[..., Engine], alone: Alone
) -> None:
    params = SamplingParams(max_tokens=20, temperature=temperature)
    wanted = alone(choices("a", length, params, forked=False))
    engine = load(chunk_tokens=budget, kv_tokens=1024)
    answers = finish_all(engine, choices("a", length, params, forked=True))
    assert wanted == [answer.tokens for answer in answers.values()]


def computed_tokens(engine: Engine, requests: list[Request]) -> tuple[int, int, list[Answer]]:
    """Tokens and copies that all steps together computed, and the answers."""
    plan, seen = engine.scheduler.plan, []
    engine.scheduler.plan = lambda *a: seen.append(made := plan(*a)) or made  # type: ignore[func-returns-value,method-assign]
    answers = list(finish_all(engine, requests).values())
    return sum(p.num_tokens for p in seen), sum(len(p.copies) for p in seen), answers


def test_a_prompt_is_computed_once_for_all_of_its_choices(load: Callable[..., Engine]) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0)
    tokens, copies, answers = computed_tokens(load(), choices("a", 41, params, forked=True))
    # The prompt once, its last token again for each other choice, and seven decoded tokens of each.
    assert tokens == 41 + (CHOICES - 1) + CHOICES * 7
    # Nine tokens stand in the third block: all but one of the choices copy it.
    assert copies == CHOICES - 1
    assert [answer.cached_tokens for answer in answers] == [0, 40, 40, 40, 40]


def test_without_forks_the_rest_of_the_last_block_is_computed_for_each(load: Callable[..., Engine]) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0)
    tokens, copies, _ = computed_tokens(load(), choices("a", 41, params, forked=False))
    assert (tokens, copies) == (41 + (CHOICES - 1) * (41 - 32) + CHOICES * 7, 0)


@pytest.mark.parametrize("steps", range(6))
def test_a_leader_that_is_aborted_ends_no_fork(steps: int, load: Callable[..., Engine], alone: Alone) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0)
    requests = choices("a", 22, params, forked=True)
    wanted = alone(choices("a", 22, params, forked=False))
    engine = load(chunk_tokens=9)
    answers = {request.id: Answer() for request in requests}
    for request in requests:
        engine.submit(request)
    for _ in range(steps):
        for output in engine.step():
            answers[output.id].add(output)
    engine.abort("a0")
    while engine.has_work:
        for output in engine.step():
            answers[output.id].add(output)
    engine.tree.check()
    assert wanted[1:] == [answer.tokens for answer in answers.values()][1:]
    assert engine.tree.available_blocks == engine.tree.pool.capacity


def test_forks_are_preempted_and_finish_with_the_same_tokens(
    load: Callable[..., Engine], alone: Alone
) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.0)
    wanted = alone(choices("a", 10, params, forked=False))
    engine = load(block_size=4, kv_tokens=64)
    _, copies, answers = computed_tokens(engine, choices("a", 10, params, forked=True))
    assert wanted == [answer.tokens for answer in answers]
    assert copies
    assert engine.tree.available_blocks == engine.tree.pool.capacity


def test_another_prompt_or_salt_is_not_forked(load: Callable[..., Engine]) -> None:
    engine = load()
    engine.submit(Request(id="a", prompt=[5] * 20, params=greedy(4)))
    for name, other in (("b", {"prompt": [6] * 20}), ("c", {"salt": "x"}), ("d", {"fork_of": "nobody"})):
        settings: dict[str, Any] = {"prompt": [5] * 20, "fork_of": "a", **other}
        engine.submit(Request(id=name, params=greedy(4), **settings))
    assert [sequence.leader for sequence in engine.scheduler.waiting] == [None] * 4
