"""What other processes see of a replica that is published: also if the memory is full, or its writer is away."""

import os
from array import array

import pytest

from radix_cache.machine.mapped_replica import MappedReplica
from radix_cache.machine.published_replica import PublishedReplica
from radix_cache.machine.segment import BYTES_NEEDED, BYTES_USED, IndexSegment, create_segments
from radix_cache.match import WorkerId
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import NodeHead, PredictionAdded

SPACE = TreeId(bytes(8))
W = WorkerId("w")


class Told:
    """A listener that remembers which predictions of others are under way."""

    def __init__(self):
        self.under_way = {}
        self.computed = []

    def predicted(self, identity, tenure, new_blocks, blocks, sent_at):
        self.under_way[identity] = (tenure, new_blocks, blocks)

    def prompt_computed(self, identity):
        assert identity in self.under_way
        self.computed.append(identity)

    def prediction_over(self, identity):
        del self.under_way[identity]


def a_node(run, tenure=1):
    hashes = array("Q", run)
    return SPACE, NodeHead(run[0], 1, 0, len(run), 0, 0, 0, run[-1], 0, 0, {tenure: len(run)}), hashes, {}


def a_prediction(name, *hashes):
    return PredictionAdded(name * 16, 1, 9000, 0, 0, array("Q", hashes))


def load(replica, nodes, predictions=(), tip=b"a tip..."):
    for _ in replica.load(0, tip, 1, {}, nodes, predictions):
        pass


def mapped(segment):
    replica = MappedReplica(lambda: 0.0, 10.0)
    replica.enrol(W, 1, "")
    replica.use(segment)
    replica.set_current(is_current=True)
    return replica


@pytest.fixture
def descriptors():
    created = create_segments(4 * 1024**2)
    yield created
    for descriptor in created:
        os.close(descriptor)


@pytest.fixture
def published(descriptors):
    return PublishedReplica(lambda: 0.0, 10.0, IndexSegment(descriptors[0], writable=True))


@pytest.fixture
def seen(descriptors):
    return mapped(IndexSegment(descriptors[0]))


def test_nodes_are_gone_and_come_back_as_they_are_loaded(published, seen):
    for nodes, held in (([a_node([1, 2, 3])], 3), ([], 0), ([a_node([1, 2])], 2)):
        load(published, nodes, tip=os.urandom(8))
        assert seen.match(array("Q", [1, 2, 3])).held(W) == held


def test_of_a_tree_that_is_too_large_a_part_is_seen_and_nothing_breaks(published, seen, descriptors):
    segment = IndexSegment(descriptors[0])
    nodes = [a_node(range(first * 512 + 1, first * 512 + 513)) for first in range(2000)]
    load(published, nodes)
    found = sum(seen.match(run).held(W) == 512 for _, _, run, _ in nodes)
    assert 500 < found < 1000
    assert len(published.nodes) == 2000
    assert segment.words[BYTES_NEEDED] > 0
    assert segment.words[BYTES_USED] <= segment.size
    # What no node needs any more has room for others.
    load(published, nodes[1500:], tip=b"another.")
    load(published, nodes[1500:], tip=b"a third.")
    assert all(seen.match(run).held(W) == 512 for _, _, run, _ in nodes[1500:])


def test_requests_under_way_are_seen_until_they_end(published, seen):
    load(published, [], [a_prediction(b"a", 5, 6, 7), a_prediction(b"b", 5, 6)])
    match = seen.match(array("Q", [5, 6, 7]))
    assert match.pending == {W: 3}
    assert match.shared == [(2, 2), (3, 1)]
    assert seen.repeated_blocks([W]) == {W: 2}
    load(published, [], [a_prediction(b"a", 5, 6, 7)], tip=b"another.")
    assert seen.match(array("Q", [5, 6, 7])).shared == [(3, 1)]
    assert not seen.repeated_blocks([W])


def test_requests_under_way_do_not_count_while_the_writer_is_away(published, seen):
    load(published, [a_node([5, 6])], [a_prediction(b"a", 5, 6, 7)])
    seen.set_current(is_current=False)
    match = seen.match(array("Q", [5, 6, 7]))
    assert (match.held(W), match.pending, match.shared) == (2, {}, ())


def test_both_sides_get_the_requests_of_others_and_their_ends(published, seen):
    here, there = Told(), Told()
    published.report_predictions(here, b"p")
    seen.report_predictions(there, b"q")
    seen.refresh(1)
    load(published, [], [a_prediction(name, *name) for name in (b"p", b"q", b"r")])
    seen.refresh(1)
    assert (sorted(here.under_way), sorted(there.under_way)) == (
        [b"q" * 16, b"r" * 16],
        [b"p" * 16, b"r" * 16],
    )
    assert there.under_way[b"r" * 16] == (1, 1, 1)
    load(published, [], [a_prediction(b"p", 112)], tip=b"another.")
    seen.refresh(1)
    assert (sorted(here.under_way), sorted(there.under_way)) == ([], [b"p" * 16])
    seen.set_current(is_current=False)
    assert not there.under_way


def test_both_sides_get_which_prompts_of_others_are_computed(published, seen):
    here, there = Told(), Told()
    published.report_predictions(here, b"p")
    seen.report_predictions(there, b"q")
    seen.refresh(1)
    load(published, [], [a_prediction(name, 1, *name) for name in (b"p", b"q", b"r")])
    for name in b"pqr":
        published._prediction_table.holds(1, name)
    seen.refresh(1)
    assert here.computed == [b"q" * 16, b"r" * 16]
    assert there.computed == [b"p" * 16, b"r" * 16]


def test_a_reader_that_fell_behind_by_a_whole_ring_drops_its_predictions(published, seen):
    there = Told()
    seen.report_predictions(there, b"q")
    seen.refresh(1)
    load(published, [], [a_prediction(b"r", 1)])
    seen.refresh(1)
    assert there.under_way
    for number in range(5000):
        load(published, [], [a_prediction(b"%c" % (number % 64), 1)], tip=os.urandom(8))
    seen.refresh(1)
    assert not there.under_way
    load(published, [], [a_prediction(b"z", 1)], tip=b"last tip")
    seen.refresh(1)
    assert list(there.under_way) == [b"z" * 16]


def test_a_second_segment_is_another_copy(descriptors, published, seen):
    load(published, [a_node([1, 2, 3])])
    second = IndexSegment(descriptors[1], writable=True)
    successor = PublishedReplica(lambda: 0.0, 10.0, second)
    load(successor, [a_node([1, 2])])
    path = array("Q", [1, 2, 3])
    assert seen.match(path).held(W) == 3
    seen.use(IndexSegment(descriptors[1]))
    assert seen.match(path).held(W) == 2
    IndexSegment(descriptors[0], writable=True).clear()
    assert not mapped(IndexSegment(descriptors[0])).match(path).path
