"""What no routing can pass by much: shared caches, and the room of workers before them."""

from policies.simulation.block_cache import BlockCache
from policies.simulation.shared_cache import PooledKvMemory, SharedCache


def test_what_one_worker_computed_the_other_has():
    kept = SharedCache(10)
    one, other = PooledKvMemory(kept, 4), PooledKvMemory(kept, 4)
    assert one.acquire([1, 2], 3) == 0
    one.publish([1, 2])
    assert other.match([1, 2, 3]) == 2
    assert other.acquire([1, 2, 3], 4) == 2


def test_a_request_starts_when_its_workers_kv_has_room_and_not_before():
    kept = SharedCache(100)
    place, beside = PooledKvMemory(kept, 4), PooledKvMemory(kept, 4)
    assert place.acquire([1, 2], 3) == 0
    assert place.acquire([7], 2) is None
    assert place.acquire([7], 1) == 0
    assert beside.acquire([8], 4) == 0
    place.publish([1, 2])
    place.release([1, 2], 1)
    assert place.acquire([9], 3) == 0


def test_blocks_that_running_requests_share_take_their_room_once():
    place = PooledKvMemory(SharedCache(100), 4)
    place.acquire([1, 2], 3)
    place.publish([1, 2])
    assert place.acquire([1, 2], 4) is None
    assert place.acquire([1, 2], 3) == 2
    place.release([1, 2], 1)
    assert place.acquire([1, 2, 3], 4) is None, "the other one's blocks are still there"
    place.release([1, 2], 1)
    assert place.acquire([1, 2, 3], 4) == 2


def test_alone_with_room_for_everything_it_answers_as_an_engines_own_memory_does():
    own, pooled = BlockCache(4), PooledKvMemory(SharedCache(4), 4)
    for blocks, total in (([1, 2], 3), ([1, 2, 3], 4), ([5], 5), ([6], 2), ([1, 2], 2)):
        held = own.acquire(blocks, total)
        assert pooled.acquire(blocks, total) == held
        if held is None:
            continue
        for cache in (own, pooled):
            cache.publish(blocks[held:])
            cache.release(blocks, total - len(blocks))
