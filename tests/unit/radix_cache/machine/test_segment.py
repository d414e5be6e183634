"""Segments take memory as they are filled, give it back, and are done without where there are none."""

import errno
import os

from radix_cache.machine.segment import BYTES_MIN, SEGMENTS, IndexSegment, create_segments


def taken(descriptor):
    return os.fstat(descriptor).st_blocks * 512


def test_a_segment_takes_memory_as_it_is_filled_and_gives_it_back():
    descriptors = create_segments(64 * 1024**2)
    assert [os.fstat(each).st_size for each in descriptors] == [64 * 1024**2] * SEGMENTS
    written, read = IndexSegment(descriptors[0], writable=True), IndexSegment(descriptors[0])
    assert taken(descriptors[0]) == 0
    written.data[: 1024**2] = b"x" * 1024**2
    assert read.words[7] == int.from_bytes(b"x" * 8, "little")
    assert 1024**2 <= taken(descriptors[0]) < 4 * 1024**2
    written.clear()
    assert taken(descriptors[0]) == read.words[7] == 0
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_small_bound_still_leaves_room_for_the_tables():
    descriptors = create_segments(1)
    assert {os.fstat(each).st_size for each in descriptors} == {BYTES_MIN}
    for descriptor in descriptors:
        os.close(descriptor)


def test_where_memory_cannot_be_shared_there_are_no_segments(monkeypatch):
    def refused(name, flags):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    assert create_segments(64 * 1024**2) == []
    monkeypatch.delattr(os, "memfd_create")
    assert create_segments(64 * 1024**2) == []
