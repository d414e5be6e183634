"""The RadixTree of dynamo.llm, measured in an environment of its own:

    .tools/dynamo-venv/bin/python -m tests.benchmarks.index.dynamo SETTINGS       prints figures, as JSON

This module must not import what that environment lacks. The tree is keyed by unchained hashes and its events name
chained ones; drawn hashes serve as both.
"""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.benchmarks.index import timing
from tests.benchmarks.index.corpus import Shape, corpus, holds, prompts

if TYPE_CHECKING:
    from radix_cache.blocks import Hashes


def measure(settings: dict[str, Any]) -> dict[str, float]:
    """Measure matches; `settings` has shape, sizes (blocks of a prompt), calls and rounds."""
    from dynamo.llm import RadixTree  # type: ignore[import-not-found]

    shape = Shape(**settings["shape"])
    sessions = corpus(shape)
    tree, told = RadixTree(), [set() for _ in range(shape.workers)]  # type: ignore[var-annotated]
    number = 0
    for session, hashes in holds(sessions):
        known, at = told[session.worker], len(hashes)
        while at and hashes[at - 1] not in known:
            at -= 1
        if at < len(hashes):
            number += 1
            new = hashes[at:]
            known.update(new)
            tree.apply_event(session.worker, _stored(number, hashes[at - 1] if at else None, new))
    figures: dict[str, float] = {}
    for size in settings["sizes"]:
        asked = [list(one) for one in prompts(sessions, size, settings["calls"])]
        taken = timing.in_turn({"match": _asker(tree, shape.workers)}, asked, settings["rounds"])
        figures |= timing.figures(f"match_{size}", taken["match"])
    return figures


def _stored(number: int, parent: int | None, hashes: "Hashes") -> bytes:
    blocks = [{"block_hash": one, "tokens_hash": one, "mm_extra_info": None} for one in hashes]
    stored = {"parent_hash": parent, "start_position": None, "blocks": blocks}
    return json.dumps({"event_id": number, "data": {"stored": stored}, "dp_rank": 0}).encode()


def _asker(tree: Any, workers: int) -> Callable[[list[int]], None]:
    ranks = [(number, 0) for number in range(workers)]

    def ask(hashes: list[int]) -> None:
        scores = tree.find_matches(hashes).scores
        for rank in ranks:
            scores.get(rank, 0)

    return ask


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
