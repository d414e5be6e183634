"""The prediction of a prefix: which worker counts as holding a prompt, from when to when."""

import asyncio

import pytest

from radix_cache.match import WorkerId
from tests.fakes.attempt_outcomes import (
    BAD_REQUEST,
    CONSENTS,
    UNHEALTHY,
    held,
    pair_stage,
    provider_stage,
)
from tests.fakes.dispatch_stage import (
    SPACE,
    DispatchStage,
    prompt_of,
    tenant,
    until_idle,
)


@pytest.fixture
def stage():
    return DispatchStage("a", "b", "c")


async def test_a_prompt_under_way_counts_as_cached_for_the_next_request(stage):
    stage.adapters["a"].silent()
    prompt = prompt_of()
    running = stage.begin(stage.pending(stage.context(), prompt))
    await until_idle()
    assert stage.index.match(SPACE, prompt.hashes).pending == {"a": 10}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert stage.index.match(SPACE, prompt.hashes).pending == {}


async def test_an_answered_prompt_is_cached_on_its_worker(stage):
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(), prompt))
    assert held(stage, prompt) == 10


@pytest.mark.parametrize("outcome", [UNHEALTHY, BAD_REQUEST])
async def test_a_prompt_that_was_not_answered_is_not_cached(stage, outcome):
    stage.adapters["a"].next(outcome)
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(), prompt))
    assert held(stage, prompt) == 0


async def test_a_tenant_over_its_share_of_the_index_leaves_nothing_there(stage):
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(tenant=tenant(cache_blocks_max=5)), prompt))
    assert held(stage, prompt) == 0
    assert stage.index_quota.unrecorded_paths == 1


async def test_blocks_that_a_worker_holds_do_not_count_against_a_tenants_share(stage):
    prompt = prompt_of()
    stage.index.confirm(SPACE, prompt.hashes[:6], WorkerId("b"))
    await stage.serve(stage.pending(stage.context(tenant=tenant(cache_blocks_max=5)), prompt))
    assert held(stage, prompt) == 10


async def test_a_prompt_at_a_provider_is_not_in_the_index():
    stage = provider_stage()
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(tenant=CONSENTS), prompt))
    assert held(stage, prompt, "cloud") == 0
    assert stage.index.stats().blocks == 0


async def test_the_prompt_of_a_pair_is_on_both_workers_once_it_is_answered():
    stage = pair_stage()
    prompt = prompt_of()
    await stage.serve(stage.pending(stage.context(), prompt))
    assert (held(stage, prompt, "p"), held(stage, prompt, "d")) == (10, 10)
