"""Readers in other processes never see half of a record, however fast the writer replaces them."""

import os
import random
import signal
import time
from array import array
from itertools import count

import pytest

from radix_cache.machine import mapped_replica
from radix_cache.machine.mapped_replica import MappedReplica
from radix_cache.machine.published_replica import PublishedReplica
from radix_cache.machine.records import RECORD_WORDS_MAX, read_record
from radix_cache.machine.segment import BYTES_NEEDED, CHANGES, IndexSegment, create_segments
from radix_cache.machine.slot_table import OFFSET_MASK
from radix_cache.match import WorkerId
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import NodeHead

SPACE = TreeId(bytes(8))
KEYS = range(1, 40)
LOOKS = 30_000


def a_run(key, length):
    """Blocks that tell of the node they belong to, and of its length."""
    return array("Q", [key, *(key << 32 | length << 16 | at for at in range(1, length))])


def write_for_ever(descriptor):
    """Replace nodes by others of the same keys, as long as this process lives."""
    chance = random.Random(1)
    replica = PublishedReplica(time.monotonic, 10.0, IndexSegment(descriptor, writable=True))
    while True:
        nodes = []
        for key in KEYS:
            if chance.random() < 0.8:
                length, level = chance.randint(2, 300), chance.choice((0, 0, 2))
                chunks = {
                    chunk: {tenure << level | chunk: length for tenure in range(chance.randint(1, 9))}
                    for chunk in range(1 << level)
                }
                run = a_run(key, length)
                head = NodeHead(key, length, 0, length, 0, 0, level, run[-1], 0, 0, chunks.pop(0))
                nodes.append((SPACE, head, run, chunks))
        for _ in replica.load(0, os.urandom(8), 1, {}, nodes, ()):
            pass


@pytest.fixture
def segment():
    """A segment that another process writes without a pause."""
    descriptors = create_segments(4 * 1024**2)
    child = os.fork()
    if not child:
        try:
            write_for_ever(descriptors[0])
        finally:
            os._exit(1)
    try:
        yield IndexSegment(descriptors[0])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def read_slowly(segment, word):
    """Copy a record in two parts, between which this process has to wait for a processor."""
    at = word & OFFSET_MASK
    words = segment.words[at + 1]
    if words > RECORD_WORDS_MAX:
        return None
    first = bytes(segment.data[at * 8 : (at + words // 2) * 8])
    time.sleep(0.002)
    return first + bytes(segment.data[(at + words // 2) * 8 : (at + words) * 8])


@pytest.mark.parametrize(("read", "enough"), [(read_record, LOOKS // 4), (read_slowly, 20)])
def test_every_node_that_is_found_is_whole(segment, read, enough, monkeypatch):
    """A slow reader finds few nodes, since most are replaced while they are read."""
    monkeypatch.setattr(mapped_replica, "read_record", read)
    replica = MappedReplica(time.monotonic, 10.0)
    replica.use(segment)
    for tenure in range(40):
        replica.enrol(WorkerId(f"w{tenure}"), tenure, "")
    deadline = time.monotonic() + 30
    while not segment.words[CHANGES]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before, found, lengths = segment.words[CHANGES], 0, set()
    deadline, looks = time.monotonic() + 60, count()
    while found < enough and time.monotonic() < deadline:
        look = next(looks)
        node = replica.nodes.get(KEYS[look % len(KEYS)])
        if node is None:
            continue
        length = len(node.run)
        assert node.run == a_run(node.key, length)
        assert node.sequence == length
        held = {tenure: count for chunk in node.chunks for tenure, count in chunk.items()}
        assert held
        assert set(held.values()) == {length}
        found += 1
        lengths.add(length)
    assert found == enough
    assert len(lengths) > min(50, enough // 4)
    assert segment.words[CHANGES] > before
    assert not segment.words[BYTES_NEEDED]
