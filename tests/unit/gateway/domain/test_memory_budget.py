"""What requests reserve of the shared memory is bounded, and comes back."""

import pytest

from gateway.domain.errors import BadRequest, Overloaded
from gateway.domain.memory_budget import MemoryBudget, MemoryLease


def test_requests_share_one_bound_and_give_back_what_they_held():
    budget = MemoryBudget(100)
    one, other = MemoryLease(budget), MemoryLease(budget)
    one.reserve(60)
    with pytest.raises(Overloaded) as refused:
        other.reserve(50)
    assert refused.value.retry_after_seconds
    assert budget.bytes_held == 60
    other.reserve(40)
    one.resize(30)
    other.resize(70)
    assert budget.bytes_held == 100
    one.release()
    one.release()
    other.release()
    assert budget.bytes_held == 0


def test_a_request_that_never_has_room_is_not_told_to_come_again():
    lease = MemoryLease(MemoryBudget(100))
    with pytest.raises(BadRequest):
        lease.reserve(101)


def test_a_lease_can_shrink_while_the_budget_is_full():
    budget = MemoryBudget(100)
    one = MemoryLease(budget)
    one.reserve(100)
    budget.bytes_max = 50
    one.resize(70)
    assert budget.bytes_held == 70
