"""The follower of KV events that are not plain prefixes: groups, partial pages, gaps."""

import gc
from array import array

import pytest

from radix_cache.blocks import BlockHasher
from radix_cache.events import BlocksRemoved, BlocksStored, CacheCleared
from radix_cache.follower import PAGES_PER_STEP, CacheFollower, EnginePage, PageBudget, PathGone, PathHeld
from radix_cache.namespace import HashedNamespace, Namespace

PAGE = 2
SPACE = HashedNamespace(Namespace(model="m", block_size=PAGE), BlockHasher(block_size=PAGE, salt=b"s"))


def follower():
    return CacheFollower(lambda *_: SPACE, PageBudget(10_000))


def stored(first, pages, *, parent=None, **more):
    """Consecutive pages, named first, first + 1, ..."""
    tokens = array("I", [first + at // PAGE for at in range(pages * PAGE)])
    hashes = tuple(range(first, first + pages))
    return BlocksStored(**{"hashes": hashes, "parent": parent, "tokens": tokens, "page_size": PAGE, **more})


def blocks(first, pages):
    return SPACE.hasher.of_tokens(array("I", [first + at // PAGE for at in range(pages * PAGE)]))


def told(follower, *events):
    return [change for event in events for change in follower.apply(event) if change is not None]


def test_a_sliding_window_neither_brings_prefixes_nor_takes_them():
    here = follower()
    window = {"group": 1, "main": False}
    changes = told(here, stored(10, 4, group=0), stored(10, 4, **window), stored(20, 4, **window))
    assert changes == [PathHeld(SPACE.namespace, blocks(10, 4))]
    # The window moves on, and its pages go, under the hashes that the whole prefix has as well.
    assert told(here, BlocksRemoved(hashes=(10, 11), group=1), BlocksRemoved(hashes=(20,), group=1)) == []
    assert len(here) == 4
    assert here.covers_all
    assert here.hybrid
    assert told(here, BlocksRemoved(hashes=(13,), group=0)) == [PathGone(SPACE.namespace, blocks(10, 4), 3)]


def test_events_of_a_model_that_keeps_no_whole_prefixes_change_nothing():
    here = follower()
    assert told(here, stored(10, 4, group=0, main=False)) == []
    assert not here.covers_all
    assert here.hybrid


def test_of_two_groups_that_keep_prefixes_each_has_copies_of_its_own():
    here = follower()
    told(here, stored(10, 1, group=0), stored(10, 1, group=2))
    assert told(here, BlocksRemoved(hashes=(10,), group=2), BlocksRemoved(hashes=(10,), group=2)) == []
    assert told(here, BlocksRemoved(hashes=(10,), group=0)) == [PathGone(SPACE.namespace, blocks(10, 1), 0)]


def test_a_page_that_is_not_full_yet_is_passed_over_and_spoils_nothing():
    here = follower()
    told(here, stored(10, 2))
    half = BlocksStored(hashes=(99,), parent=11, tokens=array("I", [7]), page_size=1)
    assert told(here, half, BlocksRemoved(hashes=(99,))) == []
    assert here.covers_all
    # Full at last, it has another hash.
    assert told(here, stored(12, 1, parent=11)) != []
    assert len(here.held_blocks()) == 3


def test_what_was_not_full_at_the_very_beginning_is_forgiven_when_full_pages_come():
    here = follower()
    told(here, stored(98, 1, partial=True, page_size=1))
    assert not here.covers_all
    told(here, stored(10, 2))
    assert here.covers_all


def test_below_a_hole_nothing_is_held_and_nothing_can_be_added():
    here = follower()
    told(here, stored(10, 4))
    assert told(here, BlocksRemoved(hashes=(11,))) == [PathGone(SPACE.namespace, blocks(10, 4)[:2], 1)]
    assert here.held_blocks() == set(blocks(10, 1))
    assert told(here, stored(50, 1, parent=13)) == []
    assert here.held_blocks() == set(blocks(10, 1))


def test_a_walk_over_many_pages_lets_others_have_their_turn():
    here = follower()
    told(here, stored(0, 5 * PAGES_PER_STEP))
    walked = list(here.paths())
    assert walked.count(None) == 5
    assert [held.hashes for held in walked if held is not None] == [blocks(0, 5 * PAGES_PER_STEP)]


@pytest.mark.parametrize("ratio", [1, 3])
@pytest.mark.parametrize(
    "ends",
    [
        lambda names: [BlocksRemoved(hashes=tuple(reversed(names)))],
        lambda names: [BlocksRemoved(hashes=names)],
        lambda names: [CacheCleared()],
    ],
    ids=["leaves first", "roots first", "all at once"],
)
def test_pages_that_are_gone_free_their_memory_at_once(ratio, ends):
    """Without waiting for the collector of cycles, which a gateway lets look seldom."""
    space = HashedNamespace(SPACE.namespace, BlockHasher(block_size=ratio * PAGE, salt=b"s"))
    here, before = CacheFollower(lambda *_: space, PageBudget(10_000)), pages_alive()
    gc.disable()
    try:
        told(here, stored(0, 12), stored(100, 5, parent=5))
        assert pages_alive() == before + 17
        told(here, *ends((*range(12), *range(100, 105))))
        assert len(here) == 0
        assert pages_alive() == before
    finally:
        gc.enable()


def pages_alive():
    return sum(isinstance(each, EnginePage) for each in gc.get_objects())


def test_followers_keep_together_no_more_than_there_is_room_for():
    room = PageBudget(10)
    one, other = CacheFollower(lambda *_: SPACE, room), CacheFollower(lambda *_: SPACE, room)
    told(one, stored(0, 6))
    assert told(other, stored(100, 5)) == []
    # What it does not keep it cannot know: it says so, and others decide what that means.
    assert (len(other), other.covers_all, one.covers_all) == (0, False, True)
    told(one, BlocksRemoved(hashes=(5, 4)))
    told(other, stored(200, 6))
    assert (len(one), len(other), room.pages) == (4, 6, 10)
    one.clear()
    told(other, CacheCleared())
    assert room.pages == 0
    assert other.covers_all
