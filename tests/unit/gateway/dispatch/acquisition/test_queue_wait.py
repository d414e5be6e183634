"""The reason that an operator reads for a request that waits."""

import pytest

from gateway.dispatch.acquisition.queue_wait import waiting_reason
from policies.admission.dispatch_window import DispatchWindow
from policies.queueing.protocol import Ticket
from tests.fakes.dispatch_stage import WINDOW, DispatchStage


@pytest.fixture
def stage():
    return DispatchStage("a", "b")


def reason(stage, *, uncached_tokens=640, ahead=0, is_narrow=False, shared=False):
    room = stage.rooms.of("m")
    window = DispatchWindow(narrow=WINDOW, wide=WINDOW)
    ticket = Ticket(number=1, tenant="acme", cost=1.0, arrived_at=0.0, uncached_tokens=uncached_tokens)
    return waiting_reason(stage.fleet, room, ticket, ahead, window, is_narrow, shared)


def test_with_all_workers_full_there_is_no_room(stage):
    stage.occupy("a")
    stage.occupy("b")
    assert reason(stage, ahead=3) == "no worker has room for its prompt"


def test_requests_that_came_before_are_counted(stage):
    assert reason(stage, ahead=3) == "3 came before it"
    assert reason(stage, ahead=3, shared=True) == "3 came before it at its gateway"


def test_a_prompt_longer_than_the_window_beside_an_idle_worker_does_not_lack_room(stage):
    stage.occupy("a")
    assert "a worker stays open for shorter ones" in reason(stage, uncached_tokens=2 * WINDOW)


def test_a_request_beside_a_free_worker_waits_for_a_better_one(stage):
    stage.occupy("a")
    assert "a better worker" in reason(stage)
