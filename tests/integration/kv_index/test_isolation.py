"""Isolation of a tenant's cache: in the index, at the engine, in usage reports, and in errors.

One worker serves all tenants: what is not hit is not hit because it is another's, and not because it is elsewhere.
"""

import json

import pytest

from gateway.process.secrets import deployment_secret
from radix_cache.blocks import pack_tokens
from radix_cache.namespace import cache_salt
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.conftest import PAGE_SIZE
from tests.integration.routing.test_prefix_cache_routing import ask, cached, conversation, text, whole_pages

GROUP = {"isolation": {"mode": "group", "group": "friends"}}
SHARED = {"isolation": {"mode": "shared"}}
TENANTS = {
    "acme": {},
    "globex": {},
    "friend-1": GROUP,
    "friend-2": GROUP,
    "shared-1": SHARED,
    "shared-2": SHARED,
}


async def test_a_tenant_hits_no_blocks_of_another_unless_both_share_their_cache(
    gateway, embedded, model_settings
):
    """Every tenant sends the same prompt after every other; the cached blocks are the expected ones."""
    async with gateway(embedded[0], kind="embedded", tenants=TENANTS, **model_settings) as running:
        tally = running.here.gateway.overview.tenants
        seen, computed_blocks = {}, 0
        for tenant in TENANTS:
            _, usage = await ask(running, conversation(30), tenant=tenant)
            seen[tenant] = cached(usage)
            assert tally[tenant].total.predicted_tokens == seen[tenant]
            all_of_it = whole_pages(usage["prompt_tokens"])
            # What one tenant's prompt has brought is in the index before the next one is sent.
            computed_blocks += (all_of_it - seen[tenant]) // PAGE_SIZE
            index = running.here.gateway.index.index
            await running.until(lambda blocks=computed_blocks, index=index: index.stats().blocks >= blocks)
        assert all_of_it > 0
        assert seen == {
            **dict.fromkeys(("acme", "globex", "friend-1", "shared-1"), 0),
            **dict.fromkeys(("friend-2", "shared-2"), all_of_it),
        }
        # The second time each meets its own, and no more than that.
        for tenant in TENANTS:
            _, usage = await ask(running, conversation(30), tenant=tenant)
            assert cached(usage) == all_of_it


async def test_a_client_cannot_choose_the_cache_of_another_tenant(gateway, embedded, model_settings):
    """A tenant that knows another tenant's salt cannot use it."""
    async with gateway(embedded[0], kind="embedded", **model_settings) as running:
        salt = running.here.gateway.services.dispatch.worker_calls._cache_salt("tenant:acme")
        for seed, field in enumerate(("cache_salt", "extra_key", "rid", "session_id")):
            asked = [{"role": "user", "content": text(100 + seed)}]
            await ask(running, asked, tenant="acme")
            _, usage = await ask(running, asked, tenant="acme")
            assert cached(usage) > 0
            _, usage = await ask(running, asked, tenant="globex", **{field: salt})
            assert cached(usage) == 0


async def test_the_index_keeps_the_blocks_of_every_group_apart(gateway, embedded, model_settings):
    async with gateway(embedded[0], kind="embedded", tenants=TENANTS, **model_settings) as running:
        at = running.here.gateway.services
        await ask(running, conversation(33), tenant="acme")
        await running.until(lambda: running.here.gateway.index.index.stats().blocks > 0)
        (model,) = at.catalogue.by_name_or_alias().values()
        groups = ("tenant:acme", "tenant:globex", "group:friends", "")
        spaces = {group: at.prompt_hasher.namespace(model, group) for group in groups}
        tokens = pack_tokens(range(5, 5 + 20 * model.block_size))
        hashes = {group: set(space.hasher.of_tokens(tokens)) for group, space in spaces.items()}
        assert all(len(found) == 20 for found in hashes.values())
        for one in groups:
            for other in groups:
                assert (one == other) or not hashes[one] & hashes[other]
        secret = deployment_secret(running.here.gateway.settings)
        salts = [cache_salt(group, secret) for group in groups]
        assert len(set(salts)) == len(groups)
        assert all(len(salt) >= 32 for salt in salts[:-1])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("kind", "tenant", "told"),
    [("openai", "acme", False), ("openai", "shared-1", True), ("sglang", "acme", True)],
)
async def test_where_an_engine_cannot_keep_tenants_apart_no_tenant_gets_cached_token_counts(
    gateway, kind, tenant, told, stream
):
    async with ScriptedWorker() as worker, gateway(worker, kind=kind, tenants=TENANTS) as running:
        worker.then(cached_tokens=8)
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        async with running.chat(tenant=tenant, **more) as response:
            text = await response.text()
        assert ("cached_tokens" in text) is told
        assert '"completion_tokens": 4' in text or '"completion_tokens":4' in text
        assert running.here.gateway.overview.tenants[tenant].total.cached_tokens == 8


async def test_no_answer_names_a_worker_or_where_it_is(gateway):
    """Whatever happens to a request: its headers and its body do not name the worker."""
    async with ScriptedWorker() as worker:
        named = json.dumps([{"id": "gpu-seven", "kind": "vllm", "url": worker.url}])
        await _looked_through(gateway(workers=named), worker)


async def _looked_through(made, worker):
    async with made as running:
        address = worker.url.removeprefix("http://")
        refusal = {
            "error": {"message": f"{worker.url} gpu.cluster:8000 says no", "param": worker.url, "code": "w"}
        }
        scripts = (
            {},
            {"status": 400, "body": refusal},
            {"status": 422, "body": {"message": f"at {address}: no"}},
            {"status": 500, "body": refusal},
            {"status": 403, "body": refusal},
            {"status": 503, "body": refusal},
            {"status": 200, "break_after": 0},
            {"break_after": 2, "tokens": 9},
        )
        for script in scripts:
            worker.then(**{"status": 200, "body": None, "break_after": None, **script})
            for stream in (False, True):
                async with running.chat(stream=stream) as response:
                    said = await response.text() + json.dumps(dict(response.headers))
                for secret in (worker.url, "gpu-seven", address.split(":")[1], "cluster"):
                    assert secret not in said, (script, said)
