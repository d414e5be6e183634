"""A gateway that becomes the writer of a worker's events: the tree then has what the follower knows."""

import random
import time
from array import array
from uuid import uuid4

import pytest

from gateway.kv_index.index_reconciler import IndexReconciler
from radix_cache.blocks import BlockHasher
from radix_cache.events import BlocksRemoved, BlocksStored
from radix_cache.follower import CacheFollower, PageBudget, PathGone, PathHeld
from radix_cache.match import WorkerId
from radix_cache.namespace import HashedNamespace, Namespace
from radix_cache.shared.keys import Keys
from radix_cache.tree import RadixTree
from tests.fakes.replica import CROWDED, replica

W = WorkerId("w")
SPACE = HashedNamespace(Namespace(model="m", block_size=2), BlockHasher(block_size=2, salt=b"s"))
BOUNDS = {"blocks_max": 10_000, "predicted_seconds": 10, "idle_seconds_max": 1000, "library": CROWDED}
MEDIA = ("GPU", "GPU", "CPU", "DISK")


class Engine:
    """Stores copies of paths of one or two symbols, and removes copies, at random but as engines do."""

    def __init__(self, chance):
        self.chance = chance
        self.copies: dict[str, list[str]] = {}

    def step(self):
        leaves = [path for path in self.copies if not any(path + end in self.copies for end in "ab")]
        if leaves and self.chance.random() < 0.4:
            path = self.chance.choice(leaves)
            medium = self.copies[path].pop(self.chance.randrange(len(self.copies[path])))
            if not self.copies[path]:
                del self.copies[path]
            return BlocksRemoved(hashes=(self.name(path),), medium=medium)
        parents = ["", *self.copies]
        path = self.chance.choice(parents) + self.chance.choice("ab")
        medium = self.chance.choice(MEDIA)
        self.copies.setdefault(path, []).append(medium)
        tokens = array("I", [ord(path[-1])] * 2)
        parent = self.name(path[:-1]) if len(path) > 1 else None
        return BlocksStored(
            hashes=(self.name(path),), parent=parent, tokens=tokens, page_size=2, medium=medium
        )

    def name(self, path):
        return int("1" + path.translate({97: "0", 98: "1"}), 2)

    def paths(self):
        for path in self.copies:
            yield SPACE.hasher.of_tokens(array("I", [ord(symbol) for symbol in path for _ in range(2)]))


@pytest.mark.parametrize("seed", range(12))
async def test_records_that_an_earlier_writer_missed_or_left_are_corrected_in_every_tier(seed, redis_url):
    chance = random.Random(seed)
    here = await replica(redis_url, Keys(prefix=f"t{uuid4().hex}", shards=1), time.monotonic, **BOUNDS)
    here.index.enrol(W, "")
    await here.arrived()
    engine, follower = Engine(chance), CacheFollower(lambda *_: SPACE, PageBudget(10_000))
    ever = []
    for _ in range(60):
        for change in follower.apply(engine.step()):
            if chance.random() < 0.3:
                continue  # The writer before did not come to it.
            if isinstance(change, PathHeld):
                here.index.hold(change.namespace, change.hashes, W, tier=change.tier)
            elif isinstance(change, PathGone):
                here.index.shorten(change.namespace, change.hashes, W, change.blocks, change.tier)
            await here.arrived()
        ever += engine.paths()
    model: RadixTree[str] = RadixTree()
    for path in follower.paths():
        if path is not None:
            model.record(path.hashes, "w", 0, path.tier)
    telling = IndexReconciler(here.index, W, here.index.replica.tenures[W], lambda: True)
    assert await telling.reconcile([follower], whole=True)
    await here.arrived()
    copy = here.index.replica
    for path in ever:
        assert copy.match(path).confirmed == model.match(path)
        expected = model.slower(path).get("w")
        assert expected is None or copy.match(path).held_tiers(W) == expected
        assert expected is not None or copy.match(path).held_tiers(W).gpu == copy.match(path).held(W)
    again = IndexReconciler(here.index, W, copy.tenures[W], lambda: True)
    assert await again.reconcile([follower], whole=True)
    assert again.calls_made == 0
    await here.close()
