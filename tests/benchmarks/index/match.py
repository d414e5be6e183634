"""The cost of a match: the replica, the whole index, the tree in memory, Dynamo's tree, hashes in Redis.

Each finds the path and the number of leading blocks that every worker has; the replica and the whole index also
find how many of them are in which memory tier, as routing needs.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import orjson

from gateway.process.children import ChildFailed
from radix_cache.blocks import Hashes
from radix_cache.redis.scripts import ScriptCaller
from radix_cache.shared.keys import Keys
from radix_cache.shared.replica import TreeReplica
from radix_cache.shared.shared_index import SharedIndex
from radix_cache.shared.tree_store import TreeStore
from radix_cache.tree import RadixTree
from tests.benchmarks.index import build, timing
from tests.benchmarks.index.corpus import Session, Shape, prompts
from tests.benchmarks.subjects import run_to_its_end

COPY, INDEX, TREE, DYNAMO, HASHES = "radixgate", "shared index", "tree in memory", "dynamo", "hash per block"
DYNAMO_HOME, DYNAMO_VERSION = Path(".tools/dynamo-venv"), "1.6.1"
SIZES = (256, 456)
BOUNDS = {"blocks_max": 10_000_000, "predicted_seconds": 10.0, "idle_seconds_max": 86400.0}


def ours(shape: Shape, sessions: list[Session], *, calls: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the figures of the structures in this process."""
    tree = build.in_memory(sessions)
    copy = build.as_copy(tree, shape.workers)
    scripts = ScriptCaller("unix:///nowhere")  # never called: a match does not ask Redis
    index = SharedIndex(TreeStore(scripts, Keys()), copy, time.monotonic, **BOUNDS)  # type: ignore[arg-type]
    subjects = {
        COPY: ask_copy(copy, shape.workers),
        INDEX: ask_index(index, shape.workers),
        TREE: ask_tree(tree, shape.workers),
    }
    runs: dict[str, dict[str, float]] = {name: {} for name in subjects}
    for size in SIZES:
        for name, samples in timing.in_turn(subjects, prompts(sessions, size, calls), rounds).items():
            runs[name] |= timing.figures(f"match_{size}", samples)
    return runs


async def dynamo(shape: Shape, *, calls: int, rounds: int) -> dict[str, float]:
    """Return the figures of Dynamo's tree. Raises ChildFailed where it cannot be installed."""
    python = await dynamo_python()
    settings = orjson.dumps({"shape": asdict(shape), "sizes": SIZES, "calls": calls, "rounds": rounds})
    twice = [await _dynamo(python, settings.decode()) for _ in range(2)]
    # It cannot take turns with the others: the calmer run counts.
    return min(twice, key=lambda figures: sum(figures.values()))


async def dynamo_python() -> str:
    """Return an interpreter with Dynamo, which is installed if needed. Raises ChildFailed where that fails."""
    python = DYNAMO_HOME / "bin" / "python"
    if not (DYNAMO_HOME / ".done").exists():
        await run_to_its_end("dynamo's environment", sys.executable, "-m", "venv", str(DYNAMO_HOME))
        package = f"ai-dynamo-runtime=={DYNAMO_VERSION}"
        await run_to_its_end("dynamo", str(python), "-m", "pip", "install", "--quiet", package)
        (DYNAMO_HOME / ".done").touch()
    return str(python)


async def _dynamo(python: str, settings: str) -> dict[str, float]:
    child = await asyncio.create_subprocess_exec(
        *(python, "-m", "tests.benchmarks.index.dynamo", settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await child.communicate()
    if child.returncode:
        raise ChildFailed(f"dynamo: {' '.join(errors.decode(errors='replace').strip().splitlines()[-1:])}")
    figures: dict[str, float] = orjson.loads(out.strip().splitlines()[-1])
    return figures


def ask_copy(copy: TreeReplica, workers: int) -> Callable[[Hashes], None]:
    names = [build.worker(number) for number in range(workers)]

    def ask(hashes: Hashes) -> None:
        tiers = copy.match(hashes).tiers
        for name in names:
            tiers(name)

    return ask


def ask_index(index: SharedIndex, workers: int) -> Callable[[Hashes], None]:
    names, space = [build.worker(number) for number in range(workers)], build.space(0)

    def ask(hashes: Hashes) -> None:
        tiers = index.match(space, hashes).tiers
        for name in names:
            tiers(name)

    return ask


def ask_tree(tree: RadixTree[int], workers: int) -> Callable[[Hashes], None]:
    numbers = range(workers)

    def ask(hashes: Hashes) -> None:
        found = tree.match(hashes)
        for number in numbers:
            found.get(number, 0)

    return ask
