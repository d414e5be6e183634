"""The contract of PrefixIndex: in one process, in Redis, in a cluster; for its writer and for others."""

from array import array
from uuid import uuid4

import pytest

from radix_cache.local_index import LocalIndex
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys
from tests.fakes.clock import FakeClock
from tests.fakes.replica import replica

SPACE = Namespace(model="m", block_size=16)
W, V = WorkerId("w"), WorkerId("v")


def path(*names: int) -> "array[int]":
    return array("Q", [sum(names[: end + 1]) * 1000 + names[end] for end in range(len(names))])


@pytest.fixture
def clock():
    return FakeClock()


class Local:
    """One process's own index, which is never behind."""

    def __init__(self, clock, **bounds):
        self.writer = LocalIndex(clock, **bounds)

    async def catch_up(self):
        pass

    async def close(self):
        pass

    def __getattr__(self, name):
        return getattr(self.writer, name)


class Shared:
    """Changes go through one replica; matches are asked of it, or of the other one."""

    def __init__(self, replicas, reader):
        self.replicas = replicas
        self.asked = replicas[reader].index

    async def catch_up(self):
        for each in self.replicas:
            await each.caught_up()

    async def close(self):
        for each in self.replicas:
            await each.close()

    def match(self, namespace, hashes):
        return self.asked.match(namespace, hashes)

    def stats(self):
        return self.asked.stats()

    def __getattr__(self, name):
        return getattr(self.replicas[0].index, name)


@pytest.fixture(params=["local", "shared", "shared, another replica", "cluster", "cluster, another replica"])
async def new_index(request, clock):
    """Makes the index with the given bounds."""
    made = []

    async def new(**bounds):
        bounds = {"blocks_max": 1000, "predicted_seconds": 10, "idle_seconds_max": 100, **bounds}
        if request.param == "local":
            made.append(Local(clock, **bounds))
        else:
            in_cluster = "cluster" in request.param
            keys = Keys(prefix=f"t{uuid4().hex}", shards=2, parts=2 if in_cluster else 1)
            servers = request.getfixturevalue("cluster" if in_cluster else "valkey")
            # No look at the server's clock in the middle of a test: it would take back what this one advances.
            replicas = [
                await replica(servers.url, keys, clock, check_seconds=3600, **bounds) for _ in range(2)
            ]
            for each in replicas:
                each.index.enrol(W, "instance 1")
                each.index.enrol(V, "")
                await each.caught_up()
            made.append(Shared(replicas, reader=1 if "another" in request.param else 0))
        return made[-1]

    yield new
    for index in made:
        await index.close()


@pytest.fixture
async def index(new_index):
    return await new_index()


async def test_nothing_matches_in_an_empty_index(index):
    match = index.match(SPACE, path(1, 2, 3))
    assert (match.confirmed, match.pending) == ({}, {})
    assert match.blocks(W) == 0


async def test_a_dispatched_path_is_pending_at_once(index):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    await index.catch_up()
    match = index.match(SPACE, path(1, 2, 9))
    assert (match.confirmed, match.pending) == ({}, {W: 2})
    assert match.blocks(W) == 2


async def test_a_confirmed_path_stays_in_use_until_its_request_ends(index):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    index.confirm(SPACE, path(1, 2, 3), W)
    await index.catch_up()
    match = index.match(SPACE, path(1, 2, 3))
    assert (match.confirmed, match.pending) == ({W: 3}, {W: 3})
    index.withdraw(W, "r1")
    await index.catch_up()
    match = index.match(SPACE, path(1, 2, 3))
    assert (match.confirmed, match.pending) == ({W: 3}, {})


async def test_requests_under_way_are_counted_for_each_part_of_a_prompt(index):
    index.confirm(SPACE, path(1, 2), W)
    await index.catch_up()
    index.record(SPACE, path(1, 2), W, "r1")
    index.record(SPACE, path(1, 2, 3), W, "r2")
    index.record(SPACE, path(1, 2, 4), V, "r3")
    await index.catch_up()
    match = index.match(SPACE, path(1, 2, 3, 5))
    assert list(match.shared) == [(2, 3), (3, 1)]
    assert (match.holder_count(1), match.holder_count(3), match.holder_count(4)) == (2, 1, 0)
    assert [match.is_held(blocks) for blocks in (1, 2, 3, 4)] == [True, True, False, False]
    assert index.repeated_blocks([W, V]) == {W: 2}
    assert index.repeated_blocks([V]) == {}
    for worker, writer in ((W, "r1"), (W, "r2"), (V, "r3")):
        index.withdraw(worker, writer)
    await index.catch_up()
    assert not index.match(SPACE, path(1, 2, 3, 5)).shared
    assert index.repeated_blocks([W, V]) == {}


async def test_only_the_writer_withdraws_a_prediction(index):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    index.record(SPACE, path(1, 2), W, "r2")
    index.withdraw(W, "r2")
    index.withdraw(W, "nobody")
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).pending == {W: 3}
    index.withdraw(W, "r1")
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).pending == {}


async def test_the_deepest_prediction_counts(index):
    index.record(SPACE, path(1, 2), W, "r1")
    index.record(SPACE, path(1, 2, 3), W, "r2")
    index.record(SPACE, path(1), V, "r3")
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).pending == {W: 3, V: 1}


async def test_predictions_expire_each_in_its_time(index, clock):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    await index.catch_up()
    clock.advance(6)
    index.record(SPACE, path(1, 2), W, "r2")
    clock.advance(4)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).pending == {W: 2}
    clock.advance(6)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).pending == {}


async def test_a_confirmed_path_does_not_expire_with_its_prediction(index, clock):
    index.record(SPACE, path(1, 2, 3), W, "r1")
    index.confirm(SPACE, path(1, 2, 3), W)
    clock.advance(11)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 3}


async def test_predictions_are_bounded_and_the_oldest_gives_way(new_index):
    index = await new_index(predictions_max=4)
    for number in range(5):
        index.record(SPACE, path(number, number), W, f"r{number}")
    await index.catch_up()
    assert index.match(SPACE, path(0, 0)).pending == {}
    assert index.match(SPACE, path(4, 4)).pending == {W: 2}


async def test_requests_that_wait_share_their_prefix_and_are_at_no_worker(new_index):
    index = await new_index()
    for writer in ("r1", "r2", "r2"):
        index.wait(SPACE, path(1, 2), writer)
    waiting = index.writer if isinstance(index, Local) else index.replicas[0].index
    match = waiting.match(SPACE, path(1, 2, 3))
    assert (list(match.shared), match.pending, match.confirmed) == ([(2, 2)], {}, {})
    assert (index.waiting("m"), index.waiting("another")) == (2, 0)
    index.leave("r1")
    index.leave("r2")
    index.leave("a request that does not wait")
    assert index.waiting("m") == 0
    assert not waiting.match(SPACE, path(1, 2, 3)).shared


async def test_shortening_leaves_the_beginning(index):
    index.confirm(SPACE, path(1, 2, 3), W)
    index.shorten(SPACE, path(1, 2, 3), W, 1)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 1}


async def test_forgetting_a_worker_removes_its_predictions_too(index):
    index.confirm(SPACE, path(1, 2, 3), W)
    index.record(SPACE, path(7, 8), W, "r2")
    index.confirm(SPACE, path(1, 2, 3), V)
    index.forget(W)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {V: 3}
    assert index.match(SPACE, path(7, 8)).pending == {}


async def test_a_bounded_worker_keeps_what_it_used_last(index):
    index.set_capacity(W, 3)
    index.confirm(SPACE, path(1, 2), W)
    index.confirm(SPACE, path(5, 6), W)
    await index.catch_up()
    assert index.match(SPACE, path(5, 6)).confirmed == {W: 2}
    assert index.match(SPACE, path(1, 2)).confirmed == {W: 1}


async def test_a_bound_also_cuts_what_is_there(index):
    index.confirm(SPACE, path(1, 2, 3), W)
    index.set_capacity(W, 2)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 2}


async def test_a_worker_that_left_has_no_capacity_until_it_reports_one_again(index):
    index.set_capacity(W, 2)
    index.forget(W)
    await index.catch_up()
    index.enrol(W, "instance 1")
    await index.catch_up()
    index.confirm(SPACE, path(1, 2, 3), W)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 3}
    index.set_capacity(W, 2)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 2}


async def test_unused_blocks_are_forgotten(index, clock):
    index.confirm(SPACE, path(1, 2), W)
    # Redis stamps uses with a clock of its own, which runs on while this one stands: seconds on a busy machine.
    clock.advance(100 + 60)
    index.confirm(SPACE, path(5, 6), W)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2)).confirmed == {}


async def test_the_whole_index_is_bounded(new_index, clock):
    index = await new_index(blocks_max=4)
    index.confirm(SPACE, path(1, 2, 3), W)
    await index.catch_up()
    clock.advance(1)
    index.confirm(SPACE, path(5, 6, 7), V)
    await index.catch_up()
    assert index.stats().blocks <= 4
    assert index.match(SPACE, path(5, 6, 7)).confirmed == {V: 3}


async def test_an_empty_path_is_no_error(index):
    index.record(SPACE, path(), W, "r1")
    index.confirm(SPACE, path(), W)
    index.shorten(SPACE, path(), W, 0)
    await index.catch_up()
    assert index.match(SPACE, path()).confirmed == {}


async def test_another_instance_of_a_worker_holds_nothing(index):
    index.enrol(W, "instance 1")
    await index.catch_up()
    index.confirm(SPACE, path(1, 2, 3), W)
    await index.catch_up()
    index.enrol(W, "instance 1")
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 3}
    index.enrol(W, "instance 2")
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {}
    index.confirm(SPACE, path(1, 2), W)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 2}


async def test_a_worker_that_had_less_than_was_known_loses_what_hung_below(index):
    index.confirm(SPACE, path(1, 2, 3, 4), W)
    index.confirm(SPACE, path(1, 2, 8, 9), W)
    await index.catch_up()
    index.record(SPACE, path(1, 2, 3, 4), W, "r3")
    index.confirm(SPACE, path(1, 2, 3, 4), W)
    index.report(SPACE, path(1, 2, 3, 4), W, "r3", 1)
    index.withdraw(W, "r3")
    await index.catch_up()
    assert index.match(SPACE, path(1, 2, 3, 4)).confirmed == {W: 4}
    assert index.match(SPACE, path(1, 2, 8, 9)).confirmed == {W: 2}


async def test_a_worker_that_had_what_was_known_or_more_keeps_everything(index):
    index.confirm(SPACE, path(1, 2, 8, 9), W)
    await index.catch_up()
    for reported in (2, 3):
        index.record(SPACE, path(1, 2, 3), W, "r2")
        index.confirm(SPACE, path(1, 2, 3), W)
        index.report(SPACE, path(1, 2, 3), W, "r2", reported)
        index.withdraw(W, "r2")
        await index.catch_up()
    assert index.match(SPACE, path(1, 2, 8, 9)).confirmed == {W: 4}
    assert index.match(SPACE, path(1, 2, 3)).confirmed == {W: 3}


async def test_shortening_takes_everything_below_however_much_hangs_there(index):
    for number in range(200):
        index.confirm(SPACE, path(1, 2, 1000 + number), W)
    await index.catch_up()
    index.shorten(SPACE, path(1, 2), W, 1)
    await index.catch_up()
    assert index.match(SPACE, path(1, 2)).confirmed == {W: 1}
    index.confirm(SPACE, path(1, 2), W)
    await index.catch_up()
    assert {index.match(SPACE, path(1, 2, 1000 + number)).blocks(W) for number in range(200)} == {2}
