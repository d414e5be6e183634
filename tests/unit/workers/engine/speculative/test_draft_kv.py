"""The KV of a draft model: positions that it holds, through rejections and prefix hits."""

import pytest

from workers.engine.kv.block_pool import BlockPool
from workers.engine.kv.block_table import BlockTable
from workers.engine.kv.prefix_tree import PrefixTree
from workers.engine.speculative.draft_kv import DraftKV

SIZE = 4


class Held:
    """A table, its tree, and the draft's notes on it."""

    def __init__(self, length: int) -> None:
        self.tree = PrefixTree(BlockPool(8, SIZE))
        self.notes = DraftKV(SIZE)
        self.tokens = list(range(length))
        self.table = self.open()

    def open(self) -> BlockTable:
        table = BlockTable(self.tree, self.tokens, "")
        table.grow(len(self.tokens))
        return table

    @property
    def held(self) -> int:
        return self.notes.computed_positions(self.table)


def test_positions_are_held_up_to_the_first_gap() -> None:
    kv = Held(11)
    assert kv.held == 0
    kv.notes.mark_computed(kv.table, 0, 6)
    assert kv.held == 6
    kv.notes.mark_computed(kv.table, 6, 11)
    assert kv.held == 11


@pytest.mark.parametrize("end", range(12))
def test_what_was_held_for_rejected_drafts_is_cut_off(end: int) -> None:
    kv = Held(11)
    kv.notes.mark_computed(kv.table, 0, 9)
    kv.notes.truncate(kv.table, end)
    assert kv.held == min(9, end)


def test_a_prefix_hit_finds_what_the_draft_held_there() -> None:
    kv = Held(11)
    kv.notes.mark_computed(kv.table, 0, 11)
    kv.table.commit(kv.tokens, 11)
    kv.table.close()
    again = kv.open()
    assert again.shared_tokens == 8
    assert kv.notes.computed_positions(again) == 8


def test_a_block_in_new_hands_holds_nothing() -> None:
    kv = Held(11)
    kv.notes.mark_computed(kv.table, 0, 11)
    old = set(kv.table.ids)
    kv.table.close()
    again = kv.open()
    assert old & set(again.ids)
    assert kv.notes.computed_positions(again) == 0
