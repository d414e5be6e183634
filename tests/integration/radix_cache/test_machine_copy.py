"""The index in shared memory: the process that keeps it and one that reads it learn each other's changes."""

import asyncio
import os
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.kv_index.own_feed_leases import OwnFeedLeases
from gateway.kv_index.shared_index_parts import SharedIndexParts
from gateway.settings.stores import IndexSettings
from radix_cache.machine import mapped_reader
from radix_cache.machine.segment import IndexMemory, create_segments
from radix_cache.match import WorkerId
from radix_cache.namespace import Namespace
from radix_cache.shared.keys import Keys, tree_id

SPACE = Namespace(model="m", block_size=16)
W = WorkerId("w")
PATH = array("Q", range(1, 11))


class Process:
    """The index of one process of the machine."""

    def __init__(self, url: str, memory: IndexMemory) -> None:
        self.parts = SharedIndexParts.create(url, "machine", IndexSettings(), memory)
        self.index = self.parts.index
        loops = [self.parts.reader.follow, *(loop for _, loop in self.parts.loops())]
        self.tasks = [asyncio.create_task(loop()) for loop in loops]

    def held(self, path=PATH):
        """How many blocks of the path the replica says that the worker holds."""
        return self.index.replica.match(path).held(W)

    async def stop(self):
        """Stop as a kill would, but keep the sockets."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def close(self):
        await self.stop()
        await self.parts.close()


def sequence(process, shard):
    return process.index.replica.shards[shard].sequence


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def machine(own_valkey, tmp_path):
    """Opens processes of one machine."""
    descriptors = create_segments(8 * 1024**2)
    memory = IndexMemory(descriptors=descriptors, writes=False, corrections=Path(tmp_path, "corrections"))
    opened = []

    async def open_process(*, writes):
        opened.append(Process(own_valkey.url, replace(memory, writes=writes)))
        await asyncio.wait_for(opened[-1].parts.reader.ready.wait(), 60)
        return opened[-1]

    yield open_process
    for process in opened:
        await process.close()
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
async def both(machine):
    """The process that keeps the index, and one that reads it, with one worker."""
    keeper = await machine(writes=True)
    reader = await machine(writes=False)
    keeper.index.enrol(W, "first")
    await until(lambda: W in reader.index.replica.tenures and reader.parts.reader.up)
    return keeper, reader


async def test_each_process_has_what_the_other_records(both):
    keeper, reader = both
    reader.index.hold(SPACE, PATH[:4], W)
    await until(lambda: keeper.held() == reader.held() == 4)
    keeper.index.hold(SPACE, PATH, W)
    await until(lambda: keeper.held() == reader.held() == 10)
    # What it remembered itself until the copy showed the path is forgotten by then.
    await until(lambda: not reader.index.match(SPACE, PATH).pending)
    reader.index.record(SPACE, PATH, W, "a request")
    await until(lambda: keeper.index.match(SPACE, PATH).shared != ())
    assert keeper.index.match(SPACE, PATH).pending == {W: 10}
    reader.index.withdraw(W, "a request")
    await until(lambda: not keeper.index.match(SPACE, PATH).pending)
    assert [blocks for _, blocks in reader.index.replica.namespaces()] in ([], [10])


async def test_a_report_to_any_process_takes_off_what_continued_the_path(both):
    keeper, reader = both
    longer = PATH + array("Q", range(100, 105))
    other = PATH[:6] + array("Q", range(200, 205))
    for path in (longer, other):
        keeper.index.hold(SPACE, path, W)
    await until(lambda: reader.held(longer) == 15 and reader.held(other) == 11)
    await until(lambda: not keeper.index.match(SPACE, PATH).pending)
    shard = Keys().shard(tree_id(SPACE))
    await until(lambda: sequence(reader, shard) == sequence(keeper, shard))
    reader.index.record(SPACE, PATH, W, "a request")
    reader.index.report(SPACE, PATH, W, "a request", 3)
    assert reader.index.corrections == 1
    await until(lambda: (keeper.held(longer), keeper.held(other)) == (10, 6))
    await until(lambda: (reader.held(longer), reader.held(other)) == (10, 6))


async def test_capacity_is_kept_by_one_process_for_all(both):
    keeper, reader = both
    for process in both:
        process.index.set_capacity(W, 100)
    for number in range(20):
        reader.index.hold(SPACE, array("Q", range(1000 * number + 1, 1000 * number + 11)), W)
    tenure = keeper.index.replica.tenures[W]
    await until(lambda: keeper.index.replica.blocks > 0)
    await until(lambda: 0 < keeper.index.replica.held.get(tenure, 0) <= 100)
    await until(lambda: reader.index.replica.blocks <= 100)


async def test_without_the_first_process_another_one_continues_and_sends_later_what_it_learnt(
    both, machine, monkeypatch, caplog
):
    caplog.set_level("INFO", mapped_reader.__name__)
    keeper, reader = both
    keeper.index.hold(SPACE, PATH, W)
    await until(lambda: reader.held() == 10)
    await keeper.stop()
    with monkeypatch.context() as patched:
        patched.setattr(mapped_reader, "ALIVE_SECONDS", 0.5)
        await until(lambda: not reader.parts.reader.up)
        assert reader.held() == 10
        learnt = array("Q", range(500, 520))
        reader.index.hold(SPACE, learnt, W)
        assert reader.index.match(SPACE, learnt).held(W) == 20
        successor = await machine(writes=True)
    await until(lambda: reader.parts.reader.up)
    assert [record.levelname for record in caplog.records if "up to date" in record.message] == [
        "WARNING",
        "INFO",
    ]
    await until(lambda: successor.held(learnt) == reader.held(learnt) == 20)
    assert successor.held() == reader.held() == 10


async def test_only_the_process_that_keeps_the_index_may_follow_workers(both):
    leases = [OwnFeedLeases(each.parts.feed_leases, dict, lambda: None) for each in both]
    for _ in range(2):
        for each in leases:
            await each.renew()
    assert leases[0].fresh
    assert leases[1].fresh
    assert leases[1].table.gateways == {both[0].parts.feed_leases.identity}
