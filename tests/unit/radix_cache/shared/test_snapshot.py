"""A scan meets some fields before a change and some after it; with the log on top it is the shard at one moment."""

from array import array
from itertools import product
from struct import pack

import pytest

from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import HEAD, LogEntry
from radix_cache.shared.snapshot import LogGap, ShardSnapshot

SPACE = TreeId(b"a space.")
KEY = (1).to_bytes(8, "little")
EMPTY: "array[int]" = array("Q")


def head(sequence, run):
    return HEAD.pack(sequence, 0, len(run), 0, 0, 0, run[-1], 0, 0) + pack("<II", 7, len(run))


def entry(sequence, body):
    tips = [number.to_bytes(8, "little") for number in (sequence, sequence - 1)]
    return LogEntry.decode(tips[0] + tips[1] + sequence.to_bytes(8, "little") + SPACE + body)


def changed(sequence, kept, more, run):
    data = head(sequence, run)
    body = (
        b"n" + KEY + pack("<H", len(data)) + data + pack("<HH", kept, len(more)) + array("Q", more).tobytes()
    )
    return entry(sequence, body)


HISTORY = [
    # The entry, and the run after it: None if it is not there.
    (changed(1, 0, [1, 2, 3], [1, 2, 3]), [1, 2, 3]),
    (changed(2, 3, [4, 5], [1, 2, 3, 4, 5]), [1, 2, 3, 4, 5]),
    (changed(3, 5, [], [1, 2, 3, 4, 5]), [1, 2, 3, 4, 5]),
    (changed(4, 2, [], [1, 2]), [1, 2]),
    (changed(5, 2, [8, 9], [1, 2, 8, 9]), [1, 2, 8, 9]),
    (entry(6, b"x" + KEY), None),
    (changed(7, 0, [1, 6], [1, 6]), [1, 6]),
    (changed(8, 2, [7], [1, 6, 7]), [1, 6, 7]),
]


@pytest.mark.parametrize(
    ("begun", "met_head", "met_run"),
    [(a, b, c) for a, b, c in product(range(len(HISTORY) + 1), repeat=3) if a <= b and a <= c],
)
def test_whenever_the_scan_met_which_field_the_end_is_the_same(begun, met_head, met_run):
    """Begun after so many changes; the head was met after so many, the run after so many."""
    snapshot = ShardSnapshot(begun.to_bytes(8, "little"), begun, {SPACE: b"name"})
    if met_head and (run := HISTORY[met_head - 1][1]) is not None:
        snapshot.trees[SPACE].put(b"N" + KEY, head(met_head, run))
    if met_run and (run := HISTORY[met_run - 1][1]) is not None:
        snapshot.trees[SPACE].put(b"R" + KEY, array("Q", run).tobytes())
    for change, _ in HISTORY:
        snapshot.apply(change)
    (node,) = snapshot.nodes()
    assert (node[0], node[1].sequence, list(node[2])) == (SPACE, 8, [1, 6, 7])


def test_an_entry_that_does_not_follow_is_a_gap_and_one_that_is_known_is_passed_over():
    snapshot = ShardSnapshot((2).to_bytes(8, "little"), 2, {})
    snapshot.apply(HISTORY[1][0])
    assert snapshot.sequence == 2
    with pytest.raises(LogGap):
        snapshot.apply(HISTORY[3][0])


def test_a_namespace_that_came_and_went_during_the_scan_leaves_no_name():
    snapshot = ShardSnapshot(bytes(8), 0, {})
    new = changed(1, 0, [1], [1])
    snapshot.apply(LogEntry(new.tip, new.before, 1, new.body + b"m" + pack("<H", 4) + b"name"))
    assert snapshot.names == {SPACE: b"name"}
    snapshot.apply(entry(2, b"x" + KEY + b"e"))
    assert snapshot.names == {}
    assert list(snapshot.nodes()) == []
