"""The cost of a match as the tree grows, as more workers hold the prompt, and as there are more tenants.

Replicas are loaded from trees in memory: filling Redis with so much would take minutes, and a match does not ask
Redis.
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
    """Measure by the size of the tree: the path with 16 workers, and the path alone."""
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
    """Measure by the number of holders of one prompt: with 16 of them asked, and with all of them asked."""
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
    """Measure by the number of namespaces that share the same number of blocks."""
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
