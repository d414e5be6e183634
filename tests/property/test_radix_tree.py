"""The radix tree against a plain dictionary of prefixes, under random operations.

The vocabulary has two symbols and blocks are short, so that prompts collide, diverge and nest all the time.
"""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from radix_cache.tiers import Tier
from radix_cache.tree import RadixTree

paths = st.lists(st.sampled_from("ab"), max_size=9).map(tuple)
holders = st.sampled_from(["w1", "w2", "w3"])
tiers = st.sampled_from(Tier)


def chained(path: tuple[str, ...]) -> "array[int]":
    """A hash a prefix, as BlockHasher would give: equal only where everything before is equal."""
    bits = "1" + "".join("0" if symbol == "a" else "1" for symbol in path)
    return array("Q", [int(bits[: end + 2], 2) for end in range(len(path))])


class TreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree: RadixTree[str] = RadixTree()
        self.model: dict[str, dict[tuple[str, ...], Tier]] = {}
        self.now = 0.0

    def model_match(self, path: tuple[str, ...], tier: Tier = Tier.DISK) -> dict[str, int]:
        found = {}
        for holder, prefixes in self.model.items():
            depth = 0
            while depth < len(path) and prefixes.get(path[: depth + 1], 3) <= tier:
                depth += 1
            if depth:
                found[holder] = depth
        return found

    @rule(path=paths, holder=holders, step=st.sampled_from([0.0, 1.0]), tier=tiers)
    def record(self, path, holder, step, tier):
        self.now += step
        self.tree.record(chained(path), holder, self.now, tier)
        if path:
            held = self.model.setdefault(holder, {})
            for end in range(1, len(path) + 1):
                held[path[:end]] = min(held.get(path[:end], tier), tier)

    @rule(path=paths, holder=holders, blocks=st.integers(0, 9), tier=tiers)
    def shorten(self, path, holder, blocks, tier):
        """What lies as near as that lies further away afterwards, or nowhere."""
        self.tree.shorten(chained(path), holder, blocks, tier)
        if blocks < len(path) and holder in self.model:
            held = self.model[holder]
            for prefix in [p for p in held if p[: blocks + 1] == path[: blocks + 1]]:
                if tier is Tier.DISK:
                    del held[prefix]
                else:
                    held[prefix] = max(held[prefix], Tier(tier + 1))

    @rule(holder=holders)
    def forget(self, holder):
        self.tree.forget(holder)
        self.model.pop(holder, None)

    @rule(holder=holders, blocks=st.integers(0, 12))
    def evict(self, holder, blocks):
        before = self.model.get(holder, set())
        self.tree.evict(holder, blocks)
        self.adopt_evicted(holder, before)
        assert self.tree.held(holder) == min(len(before), blocks)

    @rule(blocks=st.integers(0, 20))
    def shrink(self, blocks):
        before = dict(self.model)
        self.tree.shrink(blocks)
        for holder, prefixes in before.items():
            self.adopt_evicted(holder, prefixes)
        assert self.tree.blocks <= blocks

    @rule(nodes=st.integers(0, 3))
    def sweep(self, nodes):
        self.tree.sweep(nodes)

    @rule(age=st.integers(0, 3))
    def evict_idle(self, age):
        before = dict(self.model)
        self.tree.evict_idle(self.now - age)
        for holder, prefixes in before.items():
            self.adopt_evicted(holder, prefixes)

    def adopt_evicted(self, holder: str, before: set[tuple[str, ...]]) -> None:
        """Which blocks go is the tree's choice; what stays must be a beginning of what there was."""
        kept = {p for p in before if self.tree.match(chained(p)).get(holder, 0) == len(p)}
        assert all(p[:-1] in kept for p in kept if len(p) > 1)
        assert len(kept) == self.tree.held(holder)
        self.model[holder] = {p: self.model[holder][p] for p in kept}

    @rule(path=paths)
    def match_agrees(self, path):
        all_of_it = self.tree.match(chained(path))
        slower = self.tree.slower(chained(path))
        assert all_of_it == self.model_match(path)
        for tier in Tier:
            found = {
                holder: slower[holder][tier] if holder in slower else all_of_it[holder]
                for holder in all_of_it
            }
            assert {holder: held for holder, held in found.items() if held} == self.model_match(path, tier)

    @invariant()
    def holds_together(self):
        self.tree.check()
        for holder, prefixes in self.model.items():
            assert self.tree.held(holder) == len(prefixes)


TestTree = TreeMachine.TestCase
TestTree.settings = settings(stateful_step_count=40)
