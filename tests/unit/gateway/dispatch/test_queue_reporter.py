"""Reports of several gateways as one: work adds up, and shares are of all of it."""

import pytest

from gateway.dispatch.queue_report import (
    WAITING_MAX,
    ModelQueueReport,
    QueueReport,
    TenantShareReport,
    WaitingRequestReport,
)
from gateway.dispatch.queue_reporter import merge_reports


def received(tenant, units, *, weight=1.0, due=0.5, waiting=0):
    return TenantShareReport(tenant=tenant, weight=weight, units=units, share=0.0, due=due, waiting=waiting)


def request(seconds, gateway="one"):
    return WaitingRequestReport(
        tenant="a",
        service_class="chat",
        gateway=gateway,
        waited_seconds=seconds,
        target_in_seconds=None,
        uncached_tokens=1,
        cached_tokens=0,
        cost=1.0,
        why="",
    )


def report(name, *, tenants=(), requests=(), queue="m", waiting=0):
    shown = ModelQueueReport(
        queue=queue,
        model=queue,
        waiting=waiting,
        waiting_tokens=10 * waiting,
        drain_units_per_second=2.5,
        evenness=0.0,
        tenants=list(tenants),
        requests=list(requests),
    )
    return QueueReport(shared=True, gateways=2, answered=[name], preemptions=1, queues=[shown])


def test_shares_and_evenness_are_of_all_gateways_together():
    # Each gateway alone serves one of them only; together each has what its weight is due.
    one = report("one", tenants=[received("a", 100.0)])
    two = report("two", tenants=[received("b", 300.0, weight=3.0), received("idle", 100.0, due=0.0)])
    (queue,) = merge_reports([one, two]).queues
    found = {shown.tenant: (shown.share, shown.due) for shown in queue.tenants}
    assert found == {"b": (0.6, 0.75), "a": (0.2, 0.25), "idle": (0.2, 0.0)}
    assert queue.evenness == pytest.approx(1.0)


def test_what_one_tenant_has_at_several_gateways_adds_up():
    parts = [report(name, tenants=[received("a", 5.0, waiting=2)], waiting=2) for name in ("one", "two")]
    found = merge_reports(parts)
    (queue,) = found.queues
    assert [(one.units, one.waiting, one.share, one.due) for one in queue.tenants] == [(10.0, 4, 1.0, 1.0)]
    assert (queue.waiting, queue.waiting_tokens, queue.drain_units_per_second) == (4, 40, 5.0)
    assert (found.answered, found.preemptions, found.gateways) == (["one", "two"], 2, 2)


def test_the_longest_wait_at_any_gateway_is_listed_first_and_the_list_is_bounded():
    one = report("one", requests=[request(float(at)) for at in range(WAITING_MAX)])
    two = report("two", requests=[request(at + 0.5, "two") for at in range(WAITING_MAX)])
    (queue,) = merge_reports([one, two]).queues
    seconds = [each.waited_seconds for each in queue.requests]
    assert len(seconds) == WAITING_MAX
    assert seconds == sorted(seconds, reverse=True)
    assert {each.gateway for each in queue.requests} == {"one", "two"}


def test_queues_that_only_one_gateway_has_are_there_too():
    found = merge_reports([report("one", queue="m"), report("two", queue="m#batch")])
    assert [queue.queue for queue in found.queues] == ["m", "m#batch"]
