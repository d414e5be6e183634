"""The request as the queue policy sees it: what of its prompt counts as work of its own."""

import asyncio

import pytest

from tests.fakes.dispatch_stage import DispatchStage, prompt_of, until_idle


def begun(stage, request):
    """Begin to acquire a placement for a request."""
    return asyncio.ensure_future(stage.acquisition.acquire(request))


@pytest.mark.parametrize("shared", [False, True], ids=["one gateway", "several gateways"])
async def test_a_prefix_that_waiting_requests_share_counts_as_work_of_one(shared):
    stage = DispatchStage("a", shared=shared)
    stage.occupy("a")
    stage.queue.room.clear()
    requests = [stage.pending(prompt=prompt_of(640)) for _ in range(3)]
    acquired = []
    for request in requests:
        acquired.append(begun(stage, request))
        await until_idle()
    assert [request.ticket.uncached_tokens for request in requests] == [640, 64, 64]
    assert requests[1].ticket.cost < requests[0].ticket.cost
    for each in acquired:
        each.cancel()


async def test_a_prompt_of_its_own_counts_whole_beside_requests_that_wait():
    stage = DispatchStage("a")
    stage.occupy("a")
    requests = [stage.pending(prompt=prompt_of(640, first=first)) for first in (1, 2)]
    acquired = [begun(stage, request) for request in requests]
    await until_idle()
    assert [request.ticket.uncached_tokens for request in requests] == [640, 640]
    for each in acquired:
        each.cancel()


async def test_a_copy_of_what_another_worker_computes_counts_whole():
    stage = DispatchStage("a", "b")
    first = stage.pending(prompt=prompt_of(640))
    await stage.acquisition.acquire(first)
    stage.policy.costs = {"a": 500.0}
    second = stage.pending(prompt=prompt_of(640))
    await stage.acquisition.acquire(second)
    assert second.ticket.uncached_tokens == 640
