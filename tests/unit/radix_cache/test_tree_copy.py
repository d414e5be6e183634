"""While a snapshot is loaded, what was known before answers; then all of the new at once."""

from array import array

import pytest

from radix_cache.match import WorkerId
from radix_cache.shared.copy import Gap, TreeCopy
from radix_cache.shared.keys import NamespaceId
from radix_cache.shared.records import Entry, Head, Predicted

SPACE = NamespaceId(bytes(8))
W = WorkerId("w")
OLD, NEW = b"old tip.", b"new tip."


def a_node(run, tenure=1):
    hashes = array("Q", run)
    return SPACE, Head(run[0], 1, 0, len(run), 0, 0, 0, run[-1], 0, 0, {tenure: len(run)}), hashes, {}


def loaded(copy, tip, nodes, entries=()):
    for _ in copy.load(0, tip, 1, {}, nodes, (), entries):
        pass


@pytest.fixture
def copy():
    copy = TreeCopy(lambda: 0.0, 10.0)
    copy.enrol(W, 1, "")
    loaded(copy, OLD, [a_node([1, 2, 3]), a_node([7, 8])])
    return copy


def matches(copy):
    return [copy.match(array("Q", path)).held(W) for path in ([1, 2, 3, 4], [7, 8], [5, 6])]


def test_before_or_after_at_every_step_of_a_load_and_nothing_in_between(copy):
    prediction = Predicted(b"p" * 16, 1, 9000, array("Q", [5]))
    loading = copy.load(0, NEW, 2, {}, [a_node([1, 2, 3, 4]), a_node([5, 6])], [prediction], ())
    seen = [matches(copy) for _ in loading]
    assert [found for at, found in enumerate(seen) if not at or found != seen[at - 1]] == [
        [3, 2, 0],
        [4, 0, 2],
    ]
    assert (copy.blocks, copy.held, len(copy.nodes)) == (6, {1: 6}, 2)
    assert copy.holding[1] == set(copy.nodes.values())
    assert (copy.shards[0].tip, copy.shards[0].loaded, copy.predictions) == (NEW, True, 1)


def test_a_load_that_does_not_fit_together_leaves_what_was_there(copy):
    missed = Entry(b"another!", b"unknown!", 2, bytes(8))
    with pytest.raises(Gap):
        loaded(copy, NEW, [a_node([5, 6])], [missed])
    assert matches(copy) == [3, 2, 0]
    assert (copy.blocks, copy.shards[0].tip, copy.shards[0].loaded) == (5, OLD, True)


def test_tenures_that_are_gone_with_the_old_nodes_hold_nothing(copy):
    loaded(copy, NEW, [a_node([1, 2], tenure=9)])
    assert (copy.held, copy.dead()) == ({9: 2}, {9})
