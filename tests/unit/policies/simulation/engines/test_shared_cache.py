"""One cache that all workers share: what one computed, all have."""

from policies.simulation.engines.shared_cache import SharedCache, SharedCacheIndex


def test_what_one_worker_computed_every_worker_has():
    cache = SharedCache(10)
    assert cache.acquire([1, 2], 3) == 0
    cache.publish([1, 2])
    assert cache.match([1, 2, 3]) == 2
    assert SharedCacheIndex(cache, 3).match([1, 2, 3]) == {0: 2, 1: 2, 2: 2}


def test_the_blocks_used_least_recently_go_first_and_the_tail_before_the_head():
    cache = SharedCache(3)
    cache.publish([1, 2])
    cache.publish([8, 9])
    assert (cache.match([1, 2]), cache.match([8, 9])) == (1, 2)
    cache.acquire([1], 1)
    cache.publish([7])
    assert (cache.match([1]), cache.match([8, 9]), cache.match([7])) == (1, 1, 1)
