"""What ends a request's wait in the queue, and when."""

import pytest

from gateway.dispatch.acquisition.wait_rules import WaitRules
from gateway.queueing.queued_request import QueuedRequest
from policies.service_class import CHAT, VOICE
from tests.fakes.dispatch_stage import DispatchStage, with_class


@pytest.fixture
def stage():
    return DispatchStage("a")


def patience(stage, service_class, **context):
    """Return in how many seconds the wait of a new request ends; None: the class ends none."""
    request, room = stage.pending(stage.context(service_class, **context)), stage.rooms.of("m")
    ticket = room.ticket(QueuedRequest(tenant="acme", cost=1.0))
    end = WaitRules(stage.overflow, stage.clock).soonest_end(request, room, ticket)
    return round(end.until - stage.clock(), 6) if end is not None else None


def test_a_class_that_waits_ends_no_wait(stage):
    assert patience(stage, CHAT) is None


@pytest.mark.parametrize("late", ["reject", "demote"])
def test_a_class_that_does_not_wait_ends_it_at_the_target(stage, late):
    assert patience(stage, with_class(CHAT, late=late)) == 0.5


def test_the_clients_own_deadline_ends_a_wait_where_it_is_sooner(stage):
    assert patience(stage, CHAT, expires_at=stage.clock() + 3.0) == 3.0
    assert patience(stage, VOICE, expires_at=stage.clock() + 3.0) == 0.15
