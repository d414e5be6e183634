"""While a snapshot is loaded, what was known before answers; then all of the new at once."""

from array import array

import pytest

from radix_cache.match import WorkerId
from radix_cache.shared.keys import TreeId
from radix_cache.shared.log_records import NodeHead, PredictionAdded
from radix_cache.shared.replica import TreeReplica
from radix_cache.tiers import TierBlocks, pack_tiers

SPACE = TreeId(bytes(8))
W = WorkerId("w")
OLD, NEW = b"old tip.", b"new tip."


def a_node(run, tenure=1):
    hashes = array("Q", run)
    return SPACE, NodeHead(run[0], 1, 0, len(run), 0, 0, 0, run[-1], 0, 0, {tenure: len(run)}), hashes, {}


def loaded(copy, tip, nodes):
    for _ in copy.load(0, tip, 1, {}, nodes, ()):
        pass


@pytest.fixture
def copy():
    copy = TreeReplica(lambda: 0.0, 10.0)
    copy.enrol(W, 1, "")
    loaded(copy, OLD, [a_node([1, 2, 3]), a_node([7, 8])])
    return copy


def matches(copy):
    return [copy.match(array("Q", path)).held(W) for path in ([1, 2, 3, 4], [7, 8], [5, 6])]


def test_before_or_after_at_every_step_of_a_load_and_nothing_in_between(copy):
    prediction = PredictionAdded(b"p" * 16, 1, 9000, 0, 0, array("Q", [5]))
    loading = copy.load(0, NEW, 2, {}, [a_node([1, 2, 3, 4]), a_node([5, 6])], [prediction])
    seen = [matches(copy) for _ in loading]
    assert [found for at, found in enumerate(seen) if not at or found != seen[at - 1]] == [
        [3, 2, 0],
        [4, 0, 2],
    ]
    assert (copy.blocks, copy.held, len(copy.nodes)) == (6, {1: 6}, 2)
    assert copy.holding[1] == set(copy.nodes.values())
    assert (copy.shards[0].tip, copy.shards[0].loaded, copy.predictions) == (NEW, True, 1)


def test_tenures_that_are_gone_with_the_old_nodes_hold_nothing(copy):
    loaded(copy, NEW, [a_node([1, 2], tenure=9)])
    assert (copy.held, copy.ended_tenures()) == ({9: 2}, {9})


def test_a_prediction_goes_on_from_a_node_that_has_been_split_since(copy):
    upper = (SPACE, NodeHead(1, 2, 0, 2, 1, 0, 0, 2, 3, 0, {1: 2}), array("Q", [1, 2]), {})
    lower = (SPACE, NodeHead(3, 2, 2, 1, 0, 0, 0, 3, 0, 1, {1: 1}), array("Q", [3]), {})
    prediction = PredictionAdded(b"p" * 16, 1, 9000, 1, 3, array("Q", [4, 5]))
    for _ in copy.load(0, NEW, 2, {}, [upper, lower], [prediction]):
        pass
    assert copy.match(array("Q", [1, 2, 3, 4, 9])).pending == {W: 4}


def test_a_prediction_below_a_node_that_is_not_known_is_not_believed_and_lapses():
    now = 0.0
    copy = TreeReplica(lambda: now, 10.0)
    copy.enrol(W, 1, "")
    for _ in copy.load(0, OLD, 1, {}, (), [PredictionAdded(b"p" * 16, 1, 9000, 77, 3, array("Q", [4]))]):
        pass
    assert copy.match(array("Q", [1, 2, 3, 4])).pending == {}
    now = 20.0
    copy.expire()
    assert copy.lapsed == {b"p" * 16: 0}


class Told:
    """A PredictionListener that notes the ids."""

    def __init__(self):
        self.begun, self.over = [], []

    def predicted(self, identity, tenure, new_blocks, blocks, sent_at):
        self.begun.append((identity, tenure, new_blocks, blocks))

    def prediction_over(self, identity):
        self.over.append(identity)


def test_predictions_of_other_gateways_are_reported_and_never_the_own_ones_even_after_they_have_ended(copy):
    told = Told()
    copy.report_predictions(told, b"own-----")
    own, other = b"own-----" + b"1" * 8, b"another-" + b"1" * 8
    for identity in (own, other):
        added = PredictionAdded(identity, 1, 9000, 0, 0, array("Q", [1, 2, 3, 4]))
        copy._prediction_table.add(0, added, 0.0)
    copy._prediction_table.remove(other)
    assert (told.begun, told.over) == ([(other, 1, 0, 4)], [other])


def test_blocks_are_counted_by_tier_and_a_tier_ends_where_it_first_has_a_gap():
    copy = TreeReplica(lambda: 0.0, 10.0)
    copy.enrol(W, 1, "")
    upper = (
        SPACE,
        NodeHead(1, 1, 0, 2, 1, 0, 0, 2, 0, 0, {1: pack_tiers(TierBlocks(1, 2, 2))}),
        array("Q", [1, 2]),
        {},
    )
    lower = (
        SPACE,
        NodeHead(3, 1, 2, 3, 0, 0, 0, 5, 0, 1, {1: pack_tiers(TierBlocks(0, 1, 3))}),
        array("Q", [3, 4, 5]),
        {},
    )
    loaded(copy, OLD, [upper, lower])
    match = copy.match(array("Q", [1, 2, 3, 4]))
    assert (match.tiers(W), match.blocks(W), match.held(W)) == (TierBlocks(1, 3, 4), 4, 4)
    assert copy.match(array("Q", [1, 9])).tiers(W) == TierBlocks(1, 1, 1)
    assert copy.held == {1: 5}


class Counting(dict):
    """Counts what is asked of it."""

    asked = 0

    def get(self, key):
        self.asked += 1
        return super().get(key)


def test_a_match_looks_at_as_many_nodes_among_10_000_namespaces_as_among_10():
    def looks(spaces):
        copy = TreeReplica(lambda: 0.0, 10.0)
        copy.enrol(W, 1, "")
        nodes = []
        for number in range(spaces):
            first = 1000 * number + 1
            upper = NodeHead(first, 1, 0, 2, 1, 0, 0, first + 1, 0, 0, {1: 2})
            lower = NodeHead(first + 2, 1, 2, 1, 0, 0, 0, first + 2, 0, first, {1: 1})
            space = TreeId(number.to_bytes(8, "little"))
            nodes += [
                (space, upper, array("Q", [first, first + 1]), {}),
                (space, lower, array("Q", [first + 2]), {}),
            ]
        loaded(copy, OLD, nodes)
        copy.nodes = Counting(copy.nodes)
        assert copy.match(array("Q", [5001, 5002, 5003, 5004])).tiers(W) == TierBlocks(3, 3, 3)
        return copy.nodes.asked

    assert looks(10_000) == looks(10) == 3
