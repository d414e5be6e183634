"""Dispatches of other gateways count before the loads report them, once, and until their requests end."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import policies.others_load
from gateway.fleet.loads import REPORT_AHEAD_SECONDS, WorkerLoad
from gateway.queueing.queue_peer import QueuePeer
from tests.fakes.scripted_worker import ScriptedWorker

GATEWAYS = 4
EACH = 3
"""Requests that each gateway sends."""

PROMPT = "a prompt of a few blocks, of which no other request has one " * 40


class HeldReports:
    """Reports of the other gateways' loads, held back until they are delivered."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._deliver = QueuePeer.update_others
        self._held = {}

    async def hold(self):
        """Hold reports back from now on, and wait until the last one counts as older than the next dispatch."""

        def hold(peer, loads, *, all_workers):
            self._held[id(peer), all_workers] = (peer, loads, all_workers)

        self._monkeypatch.setattr(QueuePeer, "update_others", hold)
        await asyncio.sleep(2 * REPORT_AHEAD_SECONDS)

    async def deliver_next(self, running):
        """Wait until every gateway has heard of all workers' loads once more, and deliver these reports."""
        self._held.clear()
        await running.until(lambda: sum(all_workers for _, all_workers in self._held) == GATEWAYS)
        for peer, loads, all_workers in self._held.values():
            if all_workers:
                self._deliver(peer, loads, all_workers=True)


class Announcements:
    """The dispatches that gateways have heard of; by then the first may be forgotten again."""

    def __init__(self, monkeypatch):
        self._heard = set()
        count_dispatch = WorkerLoad.count_dispatch_elsewhere

        def counted(load, request, **named):
            count_dispatch(load, request, **named)
            self._heard.add((id(load), request))

        monkeypatch.setattr(WorkerLoad, "count_dispatch_elsewhere", counted)

    @property
    def count(self):
        """How many dispatches were heard of, each counted at every gateway that heard of it."""
        return len(self._heard)


def others(running):
    """Sum the work of the other gateways on all workers, as this gateway knows it."""
    totals = [worker.load.others for worker in running.here.gateway.services.dispatch.fleet]
    return sum(total.streams for total in totals), sum(total.kv_tokens for total in totals)


def tokens_queued(running):
    """Sum the prompt tokens of the other gateways that are queued on all workers, as this gateway knows them."""
    return sum(worker.load.others.tokens_queued for worker in running.here.gateway.services.dispatch.fleet)


async def answered(running, text, **fields):
    """Send a prompt and read its answer."""
    async with running.chat(text, **fields) as response:
        await response.read()
        return response.status


@asynccontextmanager
async def all_sharing(gateway, own_valkey, workers, **settings):
    """Run the gateways until each knows that all share one queue, and the workers' tenures in the index."""
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        settings = {"redis.url": own_valkey.url, "limits": None, **settings}
        gateways = [await stack.enter_async_context(gateway(*workers, **settings)) for _ in range(GATEWAYS)]
        for running in gateways:
            queue = running.here.gateway.services.dispatch.queue
            await running.until(lambda at=queue: at.gateways == GATEWAYS and at.shared)
            index = running.here.gateway.index
            await running.until(
                lambda at=index: at.reader.ready.is_set() and len(at.index.replica.tenures) == len(workers)
            )
        yield gateways


@pytest.fixture
def held_open():
    """An event that the workers wait for before they answer."""
    return asyncio.Event()


def sent(gateways, **fields):
    """Send the same number of prompts through each gateway, each prompt once."""
    return [
        asyncio.create_task(answered(running, f"{at}-{number} {PROMPT}", **fields))
        for at, running in enumerate(gateways)
        for number in range(EACH)
    ]


async def test_dispatches_of_other_gateways_count_before_the_loads_report_and_once_afterwards(
    gateway, own_valkey, monkeypatch, held_open
):
    workers = [ScriptedWorker(), ScriptedWorker()]
    for worker in workers:
        worker.then(until=held_open)
    expected = (GATEWAYS - 1) * EACH
    async with all_sharing(gateway, own_valkey, workers) as gateways:
        reports = HeldReports(monkeypatch)
        await reports.hold()
        calls = sent(gateways)
        for running in gateways:
            await running.until(lambda at=running: others(at)[0] == expected)
            assert others(running)[1] > 0
        await reports.deliver_next(gateways[0])
        assert [others(running)[0] for running in gateways] == [expected] * GATEWAYS
        await asyncio.sleep(2 * REPORT_AHEAD_SECONDS)  # An end within this time may be in the report.
        held_open.set()
        assert set(await asyncio.gather(*calls)) == {200}
        # Announcements have no expected output tokens: those of the report are counted until the next one.
        for running in gateways:
            await running.until(lambda at=running: others(at)[0] == 0)
        await reports.deliver_next(gateways[0])
        assert [others(running) for running in gateways] == [(0, 0)] * GATEWAYS


async def test_prompts_of_other_gateways_are_queued_until_their_first_tokens_and_their_streams_go_on(
    gateway, own_valkey, monkeypatch, held_open
):
    workers = [ScriptedWorker(), ScriptedWorker()]
    ends = asyncio.Event()
    for worker in workers:
        worker.then(until=held_open, second_frame_until=ends)
    # No prompt counts as computed only because it is expected to be.
    monkeypatch.setattr(policies.others_load, "PATIENCE", 1e9)
    expected = (GATEWAYS - 1) * EACH
    async with all_sharing(gateway, own_valkey, workers) as gateways:
        await HeldReports(monkeypatch).hold()
        calls = sent(gateways, stream=True)
        for running in gateways:
            await running.until(lambda at=running: others(at)[0] == expected)
            assert tokens_queued(running) > 0
        held_open.set()
        for running in gateways:
            await running.until(lambda at=running: tokens_queued(at) == 0)
            assert others(running)[0] == expected
        ends.set()
        assert set(await asyncio.gather(*calls)) == {200}


async def test_a_dispatch_that_was_announced_is_forgotten_with_its_prediction(
    gateway, own_valkey, monkeypatch, held_open
):
    """The gateway that sent it never says that it has ended."""
    worker = ScriptedWorker()
    worker.then(until=held_open)
    async with all_sharing(gateway, own_valkey, [worker], **{"index.predicted_seconds": "10"}) as gateways:
        await HeldReports(monkeypatch).hold()
        announced = Announcements(monkeypatch)
        calls = sent(gateways[:1])
        await gateways[0].until(lambda: announced.count == (GATEWAYS - 1) * EACH)
        for running in gateways[1:]:
            await running.until(lambda at=running: others(at) == (0, 0))
        held_open.set()
        assert set(await asyncio.gather(*calls)) == {200}
