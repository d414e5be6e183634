"""Slot tables against a dictionary, also while they grow, and when there is no room to grow."""

import os
import random

import pytest

from radix_cache.machine.heap import SegmentHeap
from radix_cache.machine.segment import NODE_TABLE, IndexSegment, create_segments
from radix_cache.machine.slot_table import SLOTS_MIN, SlotTable, SlotTableReader


@pytest.fixture
def segments():
    """A segment as its writer has it, and the same as a reader has it."""
    descriptors = create_segments(4 * 1024**2)
    yield IndexSegment(descriptors[0], writable=True), IndexSegment(descriptors[0])
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("seed", range(4))
def test_readers_find_what_a_dictionary_would_have_after_every_change(segments, seed):
    chance = random.Random(seed)
    table = SlotTable(segments[0], SegmentHeap(segments[0]), NODE_TABLE)
    reader, model = SlotTableReader(segments[1], NODE_TABLE), {}
    keys = [chance.getrandbits(64) or 1 for _ in range(6000)]
    for step in range(20_000):
        key, word = chance.choice(keys), chance.getrandbits(63) * (chance.random() < 0.7)
        assert table.put(key, word) == model.get(key, 0)
        model[key] = word
        assert (table.get(key), reader.get(key)) == (word, word)
        if step % 1000 == 0:
            assert {key: reader.get(key) for key in keys} == {key: model.get(key, 0) for key in keys}
    assert table.count == sum(map(bool, model.values())) > SLOTS_MIN


def test_a_table_without_room_refuses_new_keys_and_keeps_the_others(segments):
    heap = SegmentHeap(segments[0])
    table = SlotTable(segments[0], heap, NODE_TABLE)
    while heap.allocate(512):
        pass
    taken = [key for key in range(1, 2000) if table.put(key, key) != key]
    assert 0.9 * SLOTS_MIN < len(taken) < SLOTS_MIN * 5 // 4
    assert all(table.get(key) == key for key in taken)
    assert table.put(taken[0], 5) == taken[0]
    assert (table.get(taken[0]), table.get(1999)) == (5, 0)


def test_hashes_that_were_forged_to_begin_at_one_slot_do_not(segments):
    table = SlotTable(segments[0], SegmentHeap(segments[0]), NODE_TABLE)
    keys = range(1 << 20, 1 << 30, 1 << 20)
    for key in keys:
        assert not table.put(key, 1)
    assert len({key % table._slots.size for key in keys}) == len(keys)


def test_a_segment_that_is_all_zeros_has_no_keys(segments):
    assert SlotTableReader(segments[1], NODE_TABLE).get(7) == 0
