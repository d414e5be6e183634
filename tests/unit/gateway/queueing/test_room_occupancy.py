"""The occupancy of a waiting room: its requests, their tenants, and since when they wait."""

import pytest
from msgspec.structs import replace

from gateway.domain.errors import Overloaded, TenantQueueFull
from gateway.queueing.room_occupancy import RoomOccupancy
from policies.admission.waiting_bounds import WaitingRoomBounds
from policies.queueing.fairness_account import FairnessAccount
from policies.queueing.protocol import Ticket
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def occupancy(clock):
    bounds = WaitingRoomBounds(requests_max=2, tokens_max=1000, tenant_requests_max=1)
    return RoomOccupancy(bounds, FairnessAccount(), clock)


def ticket(number, tenant="a", tokens=10):
    return Ticket(number=number, tenant=tenant, cost=1.0, arrived_at=0.0, uncached_tokens=tokens)


def retry(tenant):
    return 3.0 if tenant else 5.0


def test_a_ticket_counts_for_as_long_as_it_waits(occupancy):
    with occupancy.taken(ticket(0), retry):
        assert (occupancy.totals.requests, occupancy.totals.tokens) == (1, 10)
    assert (occupancy.totals.requests, occupancy.totals.tokens) == (0, 0)


def test_a_ticket_whose_wait_fails_counts_no_more(occupancy):
    with pytest.raises(ZeroDivisionError), occupancy.taken(ticket(0), retry):
        raise ZeroDivisionError
    assert occupancy.totals.requests == 0


def test_a_tenant_at_its_own_bound_gets_its_own_retry_time(occupancy):
    with occupancy.taken(ticket(0), retry), pytest.raises(TenantQueueFull) as refusal:
        with occupancy.taken(ticket(1), retry):
            pass
    assert refusal.value.retry_after_seconds == 3.0


def test_a_full_room_gives_other_tenants_the_time_of_all(occupancy):
    with occupancy.taken(ticket(0, "a"), retry), occupancy.taken(ticket(1, "b"), retry):
        with pytest.raises(Overloaded) as refusal, occupancy.taken(ticket(2, "c"), retry):
            pass
    assert refusal.value.retry_after_seconds == 5.0


def test_a_room_stands_from_its_first_wait_until_none_waits(occupancy, clock):
    began = clock()
    with occupancy.taken(ticket(0, "a"), retry):
        occupancy.note_waiting(ticket(0, "a"))
        clock.advance(2.0)
        with occupancy.taken(ticket(1, "b"), retry):
            occupancy.note_waiting(ticket(1, "b"))
        assert occupancy.standing_since == {"chat": began}
    assert occupancy.standing_since == {}


def test_a_class_does_not_stand_while_only_others_wait(occupancy, clock):
    chat, voice = ticket(0, "a"), replace(ticket(1, "b"), service_class="voice")
    with occupancy.taken(chat, retry):
        occupancy.note_waiting(chat)
        clock.advance(2.0)
        assert "voice" not in occupancy.standing_since
        with occupancy.taken(voice, retry):
            occupancy.note_waiting(voice)
            assert occupancy.standing_since["voice"] == clock()
        assert occupancy.standing_since.keys() == {"chat"}
