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


def lease_of(budget, tenant, held=0):
    lease = MemoryLease(budget)
    lease.belong_to(tenant)
    lease.reserve(held)
    return lease


def test_a_tenant_with_many_requests_leaves_memory_to_others():
    budget = MemoryBudget(800)
    flood = []
    with pytest.raises(Overloaded):
        while True:
            flood.append(lease_of(budget, "flood", 10))
    assert budget.bytes_held == 700
    lease_of(budget, "victim", 40)
    for lease in flood:
        lease.release()
    assert budget.of_tenants == {"victim": 40}


def test_a_single_request_of_a_tenant_may_take_all_memory_that_is_free():
    budget = MemoryBudget(100)
    lease_of(budget, "other", 10)
    lease = lease_of(budget, "acme", 50)
    lease.resize(90)
    assert budget.bytes_held == 100
