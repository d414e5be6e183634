"""Does a match stay what it is when the tree grows, when more workers hold the prompt, when there are more tenants?

Copies are made of trees in memory, through TreeCopy.load: filling Redis with so much would take minutes, and a
match asks no Redis.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from radix_cache.tree import RadixTree
from tests.benchmarks.index import build, timing
from tests.benchmarks.index.corpus import SEED, Shape, corpus, drawn, prompts
from tests.benchmarks.index.match import ask_copy

BLOCKS = 256
HOLDERS = (1, 16, 1000)
SPACES = (10, 10_000)


def by_size(sizes: Sequence[int], calls: int, rounds: int) -> dict[str, float]:
    """The path, and 16 workers; then the path alone."""
    figures: dict[str, float] = {}
    for blocks in sizes:
        shape = Shape(name="growth", blocks=blocks)
        sessions = corpus(shape)
        copy = build.as_copy(build.in_memory(sessions), shape.workers)
        subjects = {"match": ask_copy(copy, shape.workers), "path": copy.match}
        for name, samples in timing.in_turn(subjects, prompts(sessions, BLOCKS, calls), rounds).items():
            figures |= timing.figures(f"{name}_of_{blocks}", samples)
        gc.collect()
    return figures


def by_holders(calls: int, rounds: int) -> dict[str, float]:
    """One prompt that so many workers hold: the path, 16 of them asked; and all of them asked."""
    figures: dict[str, float] = {}
    for workers in HOLDERS:
        chance = Random(SEED)
        asked = [drawn(chance, BLOCKS) for _ in range(20)]
        tree: RadixTree[int] = RadixTree()
        for hashes in asked:
            for number in range(workers):
                tree.record(hashes, number, number)
        copy = build.as_copy(tree, workers)
        subjects = {"match": ask_copy(copy, min(workers, 16)), "asking_all": ask_copy(copy, workers)}
        taken = timing.in_turn(subjects, asked * (calls // len(asked)), rounds)
        figures |= timing.figures(f"match_held_by_{workers}", taken["match"])
        figures |= timing.figures(f"asking_all_{workers}", taken["asking_all"])
        figures[f"asking_all_{workers}_us_per_worker"] = timing.at(taken["asking_all"], 50) / workers
    return figures


def by_spaces(shape: Shape, calls: int, rounds: int) -> dict[str, float]:
    """The same number of blocks, dealt to so many namespaces: each has system prompts and sessions of its own."""
    figures: dict[str, float] = {}
    for spaces in SPACES:
        many = replace(shape, spaces=spaces, sessions_per_system=max(1, shape.blocks // spaces // 400))
        sessions = corpus(many)
        copy = build.as_copy(build.in_memory(sessions), shape.workers)
        taken = timing.in_turn(
            {"match": ask_copy(copy, shape.workers)}, prompts(sessions, BLOCKS, calls), rounds
        )
        figures |= timing.figures(f"match_in_{spaces}_spaces", taken["match"])
        gc.collect()
    return figures
