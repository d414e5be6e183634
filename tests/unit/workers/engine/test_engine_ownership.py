"""Who owns which block, after any history: a state machine with ghost KV.

The ghost remembers for every slot the exact prefix that was computed into it. So a block that somebody else wrote,
a freed block that is still read, or a shared block with the wrong content cannot pass unnoticed. The second half
plants bugs and expects the machine to find them: it shows what the machine is for.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from workers.engine.kv.pool import BlockPool
from workers.engine.kv.prefix import PrefixNode, PrefixTree
from workers.engine.kv.table import BlockTable

CAPACITY = 6
SIZE = 2
TOKENS = st.integers(0, 1)
Prefix = tuple[str, tuple[int, ...]]


class Reader:
    """A sequence reduced to what it reads."""

    def __init__(self, table: BlockTable, tokens: list[int], salt: str) -> None:
        self.table = table
        self.tokens = tokens
        self.salt = salt
        self.computed = table.shared_tokens

    def prefix(self, position: int) -> Prefix:
        return self.salt, tuple(self.tokens[: position + 1])


class Ownership(RuleBasedStateMachine):
    """Sequences open, compute, grow and leave in any order."""

    tree_class: type[PrefixTree] = PrefixTree
    table_class: type[BlockTable] = BlockTable

    def __init__(self) -> None:
        super().__init__()
        self.tree = self.tree_class(BlockPool(CAPACITY, SIZE))
        self.ghost: dict[tuple[int, int], Prefix] = {}
        self.readers: list[Reader] = []

    @rule(tokens=st.lists(TOKENS, min_size=1, max_size=9), salt=st.sampled_from(["", "a"]))
    def enter(self, tokens: list[int], salt: str) -> None:
        reader = Reader(self.table_class(self.tree, tokens, salt), tokens, salt)
        assert reader.computed < len(tokens), "no token was left to compute"
        self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(1, 5))
    def compute(self, data: st.DataObject, count: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        end = min(len(reader.tokens), reader.computed + count)
        if reader.table.missing(end) > self.tree.available:
            return
        reader.table.grow(end)
        for position in range(reader.computed, end):
            self.ghost[reader.table.ids[position // SIZE], position % SIZE] = reader.prefix(position)
        reader.computed = end
        reader.table.commit(reader.tokens, end)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), token=TOKENS)
    def generate(self, data: st.DataObject, token: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        if reader.computed == len(reader.tokens):
            reader.tokens.append(token)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        self.readers.remove(reader)
        reader.table.close()

    @rule()
    def clear(self) -> None:
        idle = not any(reader.table.shared_blocks for reader in self.readers)
        assert idle == self.tree.clear()

    @invariant()
    def every_computed_position_holds_its_own_prefix(self) -> None:
        for reader in self.readers:
            for position in range(reader.computed):
                assert (
                    reader.prefix(position) == self.ghost[reader.table.ids[position // SIZE], position % SIZE]
                )

    @invariant()
    def every_cached_block_holds_what_its_node_says(self) -> None:
        for node in self.tree.nodes():
            tokens = tuple(token for step in [*node.upwards()][::-1] for token in step.tokens)
            for offset in range(SIZE):
                end = len(tokens) - SIZE + offset + 1
                assert (node.salt, tokens[:end]) == self.ghost[node.block, offset]

    @invariant()
    def references_are_what_counting_from_scratch_gives(self) -> None:
        holders = Counter(block for reader in self.readers for block in reader.table.ids)
        holders.update(node.block for node in self.tree.nodes())
        pool = self.tree.pool
        assert [holders[block] for block in range(CAPACITY + 1)] == [
            pool.references(block) for block in range(CAPACITY + 1)
        ]
        self.tree.check()

    def teardown(self) -> None:
        for reader in self.readers:
            reader.table.close()
        self.tree.check()
        assert CAPACITY == self.tree.pool.free + self.tree.cached == self.tree.available


SETTINGS = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)

TestOwnership = Ownership.TestCase
TestOwnership.settings = SETTINGS


class ForgetsToHold(PrefixTree):
    def match(self, tokens: list[int], salt: str) -> PrefixNode | None:
        return self._deepest(tokens, salt)


class MatchesTheWholePrompt(PrefixTree):
    def _deepest(self, tokens: list[int], salt: str) -> PrefixNode | None:
        return super()._deepest([*tokens, 0], salt)


class EvictsWhatIsRead(PrefixTree):
    def release(self, node: PrefixNode | None) -> None:
        for step in node.upwards() if node else ():
            self.pool.release(step.block)
            self._idle[step] = None


class ReleasesHeadsFirst(PrefixTree):
    def release(self, node: PrefixNode | None) -> None:
        for step in [*node.upwards()][::-1] if node else ():
            self.pool.release(step.block)
            if self.pool.references(step.block) == 1:
                self._idle[step] = None


class IgnoresTheSalt(PrefixTree):
    def _deepest(self, tokens: list[int], salt: str) -> PrefixNode | None:
        return super()._deepest(tokens, "a")


class SharesPartialBlocks(BlockTable):
    def commit(self, tokens: list[int], num_computed: int) -> None:
        super().commit(tokens, min(len(tokens), num_computed + 1))


@pytest.mark.parametrize(
    "bug",
    [
        ForgetsToHold,
        MatchesTheWholePrompt,
        EvictsWhatIsRead,
        ReleasesHeadsFirst,
        IgnoresTheSalt,
        SharesPartialBlocks,
    ],
)
def test_the_machine_finds_a_planted_bug(bug: type) -> None:
    class Bugged(Ownership):
        tree_class = bug if issubclass(bug, PrefixTree) else PrefixTree
        table_class = bug if issubclass(bug, BlockTable) else BlockTable

    # The exception's kind depends on where the bug shows first. No shrinking: one counterexample is enough.
    with pytest.raises(Exception):  # noqa: B017
        run_state_machine_as_test(
            Bugged, settings=settings(SETTINGS, phases=[Phase.generate], max_examples=400, print_blob=False)
        )
