"""Placements at providers: which requests get one."""

import pytest

from gateway.domain.request import Surface
from policies.service_class import BATCH
from radix_cache.match import WorkerId
from tests.fakes.dispatch_stage import DispatchStage, inference, tenant
from workers.adapter import WorkerFailed


@pytest.fixture
def stage():
    stage = DispatchStage("a", "b")
    stage.provider()
    return stage


async def test_batch_work_stays_with_the_workers_of_its_model_after_a_failure(stage):
    request = stage.pending(stage.context(BATCH, tenant=tenant(may_overflow=True)))
    assert await stage.acquisition.providers.place_after_failure(request, "why") is None


async def test_other_work_goes_to_a_provider_after_a_failure(stage):
    request = stage.pending(stage.context(tenant=tenant(may_overflow=True)))
    placement = await stage.acquisition.providers.place_after_failure(request, "why")
    assert placement.worker.id == "cloud"


async def test_a_provider_that_has_failed_gets_no_second_call(stage):
    request = stage.pending(stage.context(tenant=tenant(may_overflow=True)))
    request.failed_workers[WorkerId("cloud")] = WorkerFailed("gone")
    assert await stage.acquisition.providers.place(request, "why") is None


async def test_what_a_provider_cannot_do_is_not_sent_there(stage):
    asked = inference(surface=Surface.TOKENIZE, stream=False)
    request = stage.pending(stage.context(tenant=tenant(may_overflow=True), request=asked))
    assert await stage.acquisition.providers.place(request, "why") is None
