"""Places of a segment's heap: never two at one address, used again when they are free, and never beyond its end."""

import os
import random

import pytest

from radix_cache.machine.heap import SegmentHeap, rounded
from radix_cache.machine.segment import BYTES_USED, HEAP, WORD, IndexSegment, create_segments


@pytest.fixture
def segment():
    descriptors = create_segments(4 * 1024**2)
    yield IndexSegment(descriptors[0], writable=True)
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("seed", range(5))
def test_places_never_overlap_and_their_sum_is_the_one_in_the_head(segment, seed):
    chance, heap = random.Random(seed), SegmentHeap(segment)
    taken: dict[int, int] = {}
    for _ in range(5000):
        if taken and chance.random() < 0.45:
            at = chance.choice(list(taken))
            heap.free(at, taken.pop(at))
        else:
            words = chance.choice((1, 3, 9, 40, 100, 513, 3000))
            if at := heap.allocate(words):
                assert at >= HEAP
                taken[at] = words
        assert segment.words[BYTES_USED] == WORD * (HEAP + sum(map(rounded, taken.values())))
    end = HEAP
    for at, words in sorted(taken.items()):
        assert at >= end
        end = at + words
    assert end <= len(segment.words)


def test_a_full_heap_has_no_place_until_one_of_the_same_size_is_free(segment):
    heap = SegmentHeap(segment)
    places = []
    while at := heap.allocate(512):
        places.append(at)
    heap.free(places[7], 512)
    assert heap.allocate(510) == places[7]
    assert heap.allocate(512) == 0


@pytest.mark.parametrize("words", [1, 4, 31, 32, 33, 63, 64, 65, 1000, 123457])
def test_a_place_is_at_most_a_seventh_larger_than_asked_or_a_few_words(words):
    assert words <= rounded(words) <= max(words + 3, words * 8 // 7)
    assert rounded(rounded(words)) == rounded(words)
