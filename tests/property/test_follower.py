"""The follower of KV events against a plain engine: a set of prefixes, stored and removed page by page."""

from array import array
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from radix_cache.blocks import BlockHasher
from radix_cache.events import BlocksRemoved, BlocksStored, CacheCleared
from radix_cache.follower import AllPathsGone, CacheFollower, PageBudget, PathHeld
from radix_cache.namespace import HashedNamespace, Namespace
from radix_cache.tiers import Tier, TierBlocks, tier_of
from radix_cache.tree import RadixTree

PAGE = 2
paths = st.lists(st.sampled_from([(1, 1), (2, 2)]), min_size=1, max_size=9).map(tuple)


class EngineMachine(RuleBasedStateMachine):
    """Pages are named by the prefix that ends with them. `ratio`: pages of a block."""

    ratio = 1

    def __init__(self) -> None:
        super().__init__()
        self.hasher = BlockHasher(block_size=PAGE * self.ratio, salt=b"s")
        space = HashedNamespace(Namespace(model="m", block_size=PAGE * self.ratio), self.hasher)
        self.follower = CacheFollower(
            lambda salt, adapter, size: space if salt == "ours" else None, PageBudget(10_000)
        )
        self.tree: RadixTree[str] = RadixTree()
        self.pages: dict[tuple, Counter] = {}
        self.now = 0

    def tell(self, event):
        for change in self.follower.apply(event):
            self.now += 1
            if isinstance(change, PathHeld):
                self.tree.record(change.hashes, "w", self.now, change.tier)
            elif isinstance(change, AllPathsGone):
                self.tree.forget("w")
                self.tree.sweep(1000)
            else:
                self.tree.shorten(change.hashes, "w", change.blocks, change.tier)

    def name(self, path):
        return hash(path) % 2**64

    @rule(path=paths, medium=st.sampled_from(["GPU", "GPU", "GPU", "CPU", "DISK"]))
    def store(self, path, medium):
        """An engine stores what continues what it has; with several pages in one event."""
        known = 0
        while known < len(path) and path[: known + 1] in self.pages:
            known += 1
        new = [path[: end + 1] for end in range(known, len(path))]
        again = not new
        if again:
            new = [path]
        parent = None if len(new[0]) == 1 else self.name(new[0][:-1])
        tokens = array("I", [token for page in new for token in page[-1]])
        for page in new:
            self.pages.setdefault(page, Counter())[medium] += 1
        self.tell(
            BlocksStored(
                hashes=tuple(map(self.name, new)),
                parent=parent,
                tokens=tokens,
                page_size=PAGE,
                salt="ours",
                medium=medium,
            )
        )

    @rule(path=paths, leaf_first=st.booleans())
    def remove(self, path, leaf_first):
        """Engines remove leaves first; some are known to leave holes."""
        if path not in self.pages:
            return
        if leaf_first and any(other[: len(path)] == path and other != path for other in self.pages):
            return
        medium = next(iter(+self.pages[path]))
        self.pages[path][medium] -= 1
        if not +self.pages[path]:
            gone = [other for other in self.pages if other[: len(path)] == path]
            for other in gone if not leaf_first else [path]:
                if other != path:
                    # What hangs below a hole is of no use, and goes in the same batch.
                    for kind, copies in self.pages[other].items():
                        for _ in range(copies):
                            self.tell(BlocksRemoved(hashes=(self.name(other),), medium=kind))
                del self.pages[other]
        self.tell(BlocksRemoved(hashes=(self.name(path),), medium=medium))

    @rule(path=paths)
    def store_what_is_not_ours(self, path):
        tokens = array("I", [token for page in path for token in page])
        hashes = tuple(self.name(("theirs", path[: end + 1])) for end in range(len(path)))
        self.tell(BlocksStored(hashes=hashes, parent=None, tokens=tokens, page_size=PAGE, salt="theirs"))

    @rule(path=paths)
    def store_behind_what_was_never_heard_of(self, path):
        orphan = BlocksStored(
            hashes=(self.name(("orphan", path)),),
            parent=12345,
            tokens=array("I", [1, 1]),
            page_size=PAGE,
            salt="ours",
        )
        self.tell(orphan)

    @rule()
    def clear(self):
        self.pages.clear()
        self.tell(CacheCleared())

    @invariant()
    def the_tree_holds_the_blocks_whose_pages_are_all_there(self):
        assert len(self.follower) == len(self.pages)
        blocks = {page for page in self.pages if len(page) % self.ratio == 0}
        assert self.tree.held("w") == len(blocks)
        for path in blocks:
            tokens = array("I", [token for page in path for token in page])
            assert self.tree.match(self.hasher.of_tokens(tokens)) == {"w": len(path) // self.ratio}
        ends = {tuple(held.hashes) for held in self.follower.paths() if held is not None}
        assert self.follower.held_blocks() == {block for end in ends for block in end}
        whole = [end for end in ends if not any(other[: len(end)] == end and other != end for other in ends)]
        assert len(whole) == sum(
            not any(other[: len(path)] == path and other != path for other in blocks) for path in blocks
        )

    def tiers_of(self, path):
        """Of its blocks how many lie how near: each as its farthest page, by that page's nearest copy."""
        found = [0, 0, 0]
        for tier in Tier:
            for end in range(self.ratio, len(path) + 1, self.ratio):
                pages = [self.pages[path[: at + 1]] for at in range(end)]
                if all(min(tier_of(medium) for medium in +copies) <= tier for copies in pages):
                    found[tier] = end // self.ratio
        return TierBlocks(*found)

    @invariant()
    def no_tier_has_more_than_lies_there_and_told_anew_each_has_all_of_it(self):
        anew: RadixTree[str] = RadixTree()
        for number, held in enumerate(self.follower.paths()):
            if held is not None:
                anew.record(held.hashes, "w", number, held.tier)
        for path in self.pages:
            if len(path) % self.ratio:
                continue
            hashes = self.hasher.of_tokens(array("I", [token for page in path for token in page]))
            truth = self.tiers_of(path)
            plain = TierBlocks(*[len(hashes)] * 3)
            assert anew.slower(hashes).get("w", plain) == truth
            told = self.tree.slower(hashes).get("w", plain)
            assert told.gpu <= truth.gpu
            assert told.host <= truth.host
            assert told.all == truth.all


@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_follower_and_engine_agree(ratio):
    run_state_machine_as_test(
        type("Machine", (EngineMachine,), {"ratio": ratio}),
        settings=settings(max_examples=settings.default.max_examples // 2, stateful_step_count=40),
    )
