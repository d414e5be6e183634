"""The rooms of several models: batch work gets what others leave, and queues take turns."""

import asyncio

import pytest

from gateway.queueing.queue_peer import QueuePeer
from gateway.queueing.queued_request import QueuedRequest
from gateway.queueing.shared.turn_requests import TurnLost
from policies.others_load import LoadTotals
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import DispatchStage, until_idle

W = WorkerId("w")


class StubWorker:
    """Places as many requests as it has room for, and keeps the names of their queues in order."""

    def __init__(self):
        self.room = 0
        self.placed = []

    def of(self, queue):
        def place(closed):
            if not self.room:
                return None
            self.room -= 1
            self.placed.append(queue)
            return queue

        return place


@pytest.fixture
def stage():
    made = DispatchStage("x")
    made.fleet.remove(WorkerId("x"))
    made.join("w", models=("m", "n"))
    return made


async def wait_in(stage, worker, *queues):
    tasks = []
    for queue in queues:
        room = stage.rooms.of(queue)
        ticket = room.ticket(QueuedRequest(tenant="a", cost=1.0))
        tasks.append(asyncio.ensure_future(room.wait(ticket, worker.of(queue))))
    await until_idle()
    return tasks


async def leave(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_queues_take_turns(stage):
    worker = StubWorker()
    tasks = await wait_in(stage, worker, "m", "m", "n", "n")
    worker.room = 4
    stage.rooms.give_turns()
    await asyncio.gather(*tasks)
    assert worker.placed == ["m", "n", "m", "n"]


async def test_batch_work_gets_what_the_others_leave(stage):
    worker = StubWorker()
    tasks = await wait_in(stage, worker, "m#batch", "m")
    worker.room = 1
    stage.rooms.give_turns()
    await until_idle()
    assert worker.placed == ["m"]
    worker.room = 1
    stage.rooms.give_turns()
    await asyncio.gather(*tasks)
    assert worker.placed == ["m", "m#batch"]


async def test_batch_work_waits_while_another_model_of_its_worker_has_requests(stage):
    tasks = await wait_in(stage, StubWorker(), "n")
    assert not stage.rooms.of("m#batch").may_give_turns
    await leave(tasks)
    assert stage.rooms.of("m#batch").may_give_turns


async def test_batch_work_that_waits_does_not_count_as_waiting_beside(stage):
    tasks = await wait_in(stage, StubWorker(), "m#batch")
    assert not stage.rooms.requests_wait_beside("m")
    assert stage.rooms.requests_wait("m#batch")
    await leave(tasks)


async def test_a_request_that_just_enters_the_shared_queue_does_not_count_as_waiting(stage):
    room = stage.rooms.of("m")
    ticket, answered = room.ticket(QueuedRequest(tenant="a", cost=1.0)), asyncio.Event()
    task = asyncio.ensure_future(room.wait_with_all(ticket, answered.wait))
    await until_idle()
    assert (len(room), stage.rooms.requests_wait("m"), stage.rooms.requests_wait_beside("m")) == (
        1,
        False,
        False,
    )
    room.note_waiting(ticket)  # The answer is that it has no turn yet.
    assert (stage.rooms.requests_wait("m"), stage.rooms.requests_wait_beside("n")) == (True, True)
    answered.set()
    await task
    assert not stage.rooms.requests_wait("m")


def test_a_queue_without_a_room_has_no_waiting_requests(stage):
    assert not stage.rooms.requests_wait("unknown")
    assert stage.rooms.all() == {}


def test_a_gateway_has_two_queues_for_each_model_of_its_workers(stage):
    assert QueuePeer(stage.fleet, stage.rooms).queues() == ["m", "n", "m#batch", "n#batch"]


def test_the_queues_beside_one_are_those_of_its_workers(stage):
    stage.join("v", models=("o",))
    assert QueuePeer(stage.fleet, stage.rooms).queues("o#batch") == ["o", "o#batch"]


def test_the_models_of_a_provider_have_no_queue_here(stage):
    stage.provider()
    stage.fleet.remove(W)
    assert QueuePeer(stage.fleet, stage.rooms).queues() == []


def test_the_loads_of_other_gateways_are_taken_over(stage):
    QueuePeer(stage.fleet, stage.rooms).update_others({W: LoadTotals(5, 1, 7)}, all_workers=False)
    assert stage.worker("w").load.all_tokens_queued == 5


@pytest.mark.parametrize(("all_workers", "queued"), [(True, 0), (False, 5)])
def test_a_worker_that_is_not_named_has_no_load_only_if_all_are_named(stage, all_workers, queued):
    peer = QueuePeer(stage.fleet, stage.rooms)
    peer.update_others({W: LoadTotals(5, 1, 7)}, all_workers=False)
    peer.update_others({}, all_workers=all_workers)
    assert stage.worker("w").load.all_tokens_queued == queued


async def test_when_the_queue_moves_all_waiting_requests_enter_again(stage):
    tasks = await wait_in(stage, StubWorker(), "m", "n")
    QueuePeer(stage.fleet, stage.rooms).queue_moved()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [TurnLost, TurnLost]


def test_what_was_given_since_a_tag_was_adopted_is_owed(stage):
    peer = QueuePeer(stage.fleet, stage.rooms)
    peer.adopt_tag("m", "a", 10.0, 12.0)
    assert peer.debts() == []
    room = stage.rooms.of("m")
    ticket = room.ticket(QueuedRequest(tenant="a", cost=4.0))
    assert room.at_once(ticket, lambda: "place") == "place"
    assert [(queue, tenant) for queue, tenant, units in peer.debts() if units > 0] == [("m", "a")]
