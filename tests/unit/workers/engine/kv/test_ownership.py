"""The owners of every KV block after any history: a state machine with a model of the KV.

The ghost remembers for every slot the exact prefix that was computed into it. So a block that another sequence
wrote, a freed block that is still read, or a shared block with the wrong content cannot pass unnoticed. A
consumer follows the events as a gateway would. The second half plants bugs and expects the machine to find them:
it shows what the machine is for.
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

from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockCopy, BlockTable
from workers.engine.kv.kv_events import BlockRemoved, BlockStored, KVEvent, block_hash
from workers.engine.kv.prefix_tree import EVICTED, PrefixNode, PrefixTree

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

    @property
    def computed(self) -> int:
        return self.table.computed

    def prefix(self, position: int) -> Prefix:
        return self.salt, tuple(self.tokens[: position + 1])


class Ownership(RuleBasedStateMachine):
    """Sequences open, fork, compute, grow and leave in any order."""

    tree_class: type[PrefixTree] = PrefixTree
    table_class: type[BlockTable] = BlockTable
    window: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.tree = self.tree_class(BlockPool(CAPACITY, SIZE), window=self.window)
        self.ghost: dict[tuple[int, int], Prefix] = {}
        self.readers: list[Reader] = []
        self.heard: set[int] = set()

    @rule(tokens=st.lists(TOKENS, min_size=1, max_size=9), salt=st.sampled_from(["", "a"]))
    def enter(self, tokens: list[int], salt: str) -> None:
        reader = Reader(self.table_class(self.tree, tokens, salt), tokens, salt)
        assert reader.computed < len(tokens), "no token was left to compute"
        self.readers.append(reader)

    @precondition(lambda self: any(reader.computed for reader in self.readers))
    @rule(data=st.data(), own=st.lists(TOKENS, min_size=1, max_size=3))
    def fork(self, data: st.DataObject, own: list[int]) -> None:
        leader = data.draw(st.sampled_from([reader for reader in self.readers if reader.computed]))
        common = data.draw(st.integers(1, leader.computed))
        tokens = [*leader.tokens[:common], *own]
        table = self.table_class(self.tree, tokens, leader.salt)
        table.share_tail(leader.table, common)
        self.readers.append(Reader(table, tokens, leader.salt))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(1, 5))
    def compute(self, data: st.DataObject, count: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        end = min(len(reader.tokens), reader.computed + count)
        if end == reader.computed or reader.table.missing(end) > self.tree.available_blocks:
            return
        for source, target in reader.table.grow(end):
            for offset in range(SIZE):
                self.ghost[target, offset] = self.ghost.get((source, offset), ("nothing", ()))
        for position in range(reader.computed, end):
            self.ghost[reader.table.ids[position // SIZE], position % SIZE] = reader.prefix(position)
        reader.table.commit(reader.tokens, end)

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), ahead=st.integers(1, 3))
    def verify_drafts_that_fail(self, data: st.DataObject, ahead: int) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        end = len(reader.tokens) + ahead
        if reader.computed == len(reader.tokens) or reader.table.missing(end) > self.tree.available_blocks:
            return
        for source, target in reader.table.grow(end):
            for offset in range(SIZE):
                self.ghost[target, offset] = self.ghost.get((source, offset), ("nothing", ()))
        for position in range(reader.computed, end):
            known = position < len(reader.tokens)
            slot = reader.table.ids[position // SIZE], position % SIZE
            self.ghost[slot] = reader.prefix(position) if known else ("draft", ())
        reader.table.commit(reader.tokens, len(reader.tokens))
        reader.table.shrink(len(reader.tokens))

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
    def every_position_that_is_still_read_holds_its_own_prefix(self) -> None:
        for reader in self.readers:
            first = 0 if self.window is None else max(0, reader.computed - self.window + 1)
            for position in range(first, reader.computed):
                slot = reader.table.ids[position // SIZE], position % SIZE
                assert slot[0], "a block that is still read was given back"
                assert reader.prefix(position) == self.ghost[slot]

    @invariant()
    def no_sequence_writes_where_another_reads(self) -> None:
        for reader in self.readers:
            index = reader.computed // SIZE
            if index < len(reader.table.ids) and not reader.table.missing(reader.computed + 1):
                assert self.tree.pool.references(reader.table.ids[index]) == 1

    @invariant()
    def every_cached_block_holds_what_its_node_says(self) -> None:
        for node in self.tree.nodes():
            if node.block == EVICTED:
                continue
            tokens = tuple(token for step in [*node.path_to_root()][::-1] for token in step.tokens)
            for offset in range(SIZE):
                end = len(tokens) - SIZE + offset + 1
                assert (node.salt, tokens[:end]) == self.ghost[node.block, offset]

    @invariant()
    def references_are_what_counting_from_scratch_gives(self) -> None:
        holders = Counter(block for reader in self.readers for block in reader.table.ids if block)
        holders.update(node.block for node in self.tree.nodes() if node.block != EVICTED)
        pool = self.tree.pool
        assert [holders[block] for block in range(CAPACITY + 1)] == [
            pool.references(block) for block in range(CAPACITY + 1)
        ]
        self.tree.check()

    @invariant()
    def whoever_follows_the_events_knows_what_is_cached(self) -> None:
        for event in self.tree.take_events():
            match event:
                case BlockStored(stored, parent):
                    assert stored not in self.heard
                    assert parent is None or self.window or parent in self.heard
                    self.heard.add(stored)
                case BlockRemoved(removed):
                    self.heard.remove(removed)
                case _:
                    self.heard.clear()
        assert self.heard == {block_hash(node.digest) for node in self.tree.nodes() if node.block != EVICTED}

    def teardown(self) -> None:
        for reader in self.readers:
            reader.table.close()
        self.tree.check()
        assert CAPACITY == self.tree.pool.free_blocks + self.tree.cached_blocks == self.tree.available_blocks


class WindowedOwnership(Ownership):
    """A model that looks four tokens back, so two or three blocks of two."""

    window = 4


SETTINGS = settings(
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)

TestOwnership = Ownership.TestCase
TestOwnership.settings = SETTINGS
TestWindowedOwnership = WindowedOwnership.TestCase
TestWindowedOwnership.settings = SETTINGS


class ForgetsToHold(PrefixTree):
    def match(self, tokens: list[int], salt: str) -> PrefixNode | None:
        return self._deepest(tokens, salt)


class MatchesTheWholePrompt(PrefixTree):
    def _deepest(self, tokens: list[int], salt: str) -> PrefixNode | None:
        return super()._deepest([*tokens, 0], salt)


class EvictsWhatIsRead(PrefixTree):
    def release(self, nodes: list[PrefixNode]) -> None:
        for node in nodes:
            self.pool.release(node.block)
            self._idle[node] = None


class ReleasesHeadsFirst(PrefixTree):
    def release(self, nodes: list[PrefixNode]) -> None:
        super().release(list(nodes)[::-1])


class ForgetsTheParents(PrefixTree):
    def release(self, nodes: list[PrefixNode]) -> None:
        super().release(list(nodes)[:1])
        for node in list(nodes)[1:]:
            self.pool.release(node.block)


class IgnoresTheSalt(PrefixTree):
    def _deepest(self, tokens: list[int], salt: str) -> PrefixNode | None:
        return super()._deepest(tokens, "a")


class LosesARemoval(PrefixTree):
    def take_events(self) -> list[KVEvent]:
        events = super().take_events()
        return events[:-1] if events and isinstance(events[-1], BlockRemoved) else events


class LosesAStore(PrefixTree):
    def take_events(self) -> list[KVEvent]:
        return super().take_events()[1:]


class KeepsHollowLeaves(PrefixTree):
    def _prune(self, node: PrefixNode | None) -> None:
        super()._prune(node if node and not node.parent else None)


class MatchesOverHoles(PrefixTree):
    def _deepest(self, tokens: list[int], salt: str) -> PrefixNode | None:
        window, self.window = self.window, 1
        found = super()._deepest(tokens, salt)
        self.window = window
        return found


class LooksLessFarBack(PrefixTree):
    def first_readable_block(self, depth: int) -> int:
        return max(0, depth * SIZE - 1) // SIZE and depth - 1


class SharesPartialBlocks(BlockTable):
    def commit(self, tokens: list[int], num_computed: int) -> None:
        super().commit(tokens, min(len(tokens), num_computed + 1))


class WritesIntoWhatOthersRead(BlockTable):
    _tail_is_shared = False


class ForgetsToCopy(BlockTable):
    def grow(self, num_tokens: int) -> list[BlockCopy]:
        super().grow(num_tokens)
        return []


class KeepsTheSharedTail(BlockTable):
    """Copies, but does not give its share of the original back."""

    def grow(self, num_tokens: int) -> list[BlockCopy]:
        copies = super().grow(num_tokens)
        for source, _ in copies:
            self._tree.pool.retain(source)
        return copies


class ClosesWithoutItsTail(BlockTable):
    def close(self) -> None:
        del self.ids[self.shared_blocks :]
        super().close()


PLAIN_BUGS = [
    ForgetsToHold,
    MatchesTheWholePrompt,
    EvictsWhatIsRead,
    ReleasesHeadsFirst,
    ForgetsTheParents,
    IgnoresTheSalt,
    LosesARemoval,
    LosesAStore,
    SharesPartialBlocks,
    WritesIntoWhatOthersRead,
    ForgetsToCopy,
    KeepsTheSharedTail,
    ClosesWithoutItsTail,
]
WINDOW_BUGS = [KeepsHollowLeaves, MatchesOverHoles, LooksLessFarBack]


@pytest.mark.parametrize(
    ("bug", "machine"),
    [(bug, Ownership) for bug in PLAIN_BUGS] + [(bug, WindowedOwnership) for bug in WINDOW_BUGS],
)
def test_the_machine_finds_a_planted_bug(bug: type, machine: type[Ownership]) -> None:
    class Bugged(machine):  # type: ignore[misc, valid-type]
        tree_class = bug if issubclass(bug, PrefixTree) else PrefixTree
        table_class = bug if issubclass(bug, BlockTable) else BlockTable

    # The exception's kind depends on where the bug shows first. No shrinking: one counterexample is enough, and
    # always the same ones are tried: by chance a few hundred now and then hold none. They are the same only while
    # the same modules are loaded, whose constants Hypothesis draws from too; hence so many.
    with pytest.raises(Exception):  # noqa: B017
        run_state_machine_as_test(
            Bugged,
            settings=settings(
                SETTINGS, phases=[Phase.generate], max_examples=4000, print_blob=False, derandomize=True
            ),
        )
