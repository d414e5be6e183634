"""What keys may do, over HTTP: scopes, addresses, models, limits of their own, accounts that are disabled."""

import pytest

from tests.fakes.scripted_worker import ScriptedWorker


@pytest.fixture
async def worker():
    async with ScriptedWorker() as started:
        yield started


def acme(**key):
    """One tenant, whose key has these properties."""
    return {"acme": {"key": key}}


async def asked(running, path="/v1/chat/completions", **headers):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    method = "GET" if path == "/v1/models" else "POST"
    sent = {**running.headers(), **headers}
    async with running.http.request(method, running.url + path, json=body, headers=sent) as response:
        said = await response.json()
        return response.status, (said.get("error") or {}).get("code"), response.headers


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ({"scopes": ["usage"]}, "scope_not_allowed"),
        ({"addresses": ["198.51.100.0/24"]}, "address_not_allowed"),
        ({"models": {"deny": ["*"]}}, "model_not_allowed"),
    ],
)
async def test_a_key_without_the_right_gets_the_reason(gateway, worker, key, code):
    async with gateway(worker, tenants=acme(**key)) as running:
        assert (await asked(running))[:2] == (403, code)
    assert worker.seen == []


async def test_a_disabled_tenant_gets_an_error_that_names_it_and_no_models(gateway, worker):
    async with gateway(worker, tenants={"acme": {"disabled": True}}) as running:
        assert (await asked(running))[:2] == (403, "account_disabled")
        assert (await asked(running, "/v1/models"))[:2] == (403, "account_disabled")


async def test_models_that_a_key_may_not_use_are_not_shown(gateway, worker):
    async with gateway(worker, tenants=acme(models={"allow": ["other-*"]})) as running:
        async with running.http.get(f"{running.url}/v1/models", headers=running.headers()) as response:
            assert (await response.json())["data"] == []


async def test_a_key_has_limits_of_its_own_inside_the_tenants(gateway, worker):
    limits = {"limits": [{"requests": 1, "per": "hour"}]}
    async with gateway(worker, tenants=acme(**limits), limits=[{"requests": 5, "per": "hour"}]) as running:
        assert (await asked(running))[0] == 200
        status, code, headers = await asked(running)
        assert (status, code, headers["x-ratelimit-limit-requests"]) == (429, "rate_limit_exceeded", "1")


async def test_an_organisation_has_limits_for_all_its_tenants(gateway, worker):
    tenants = {"acme": {"organisation": "both"}, "globex": {"organisation": "both"}}
    organisation = '[{"id": "both", "limits": [{"requests": 2, "per": "hour"}]}]'
    async with gateway(worker, tenants=tenants, organisations=organisation) as running:
        statuses = []
        for tenant in ("acme", "globex", "acme"):
            async with running.chat(tenant=tenant) as response:
                statuses.append(response.status)
                said = await response.json()
    assert statuses == [200, 200, 429]
    assert "of organisation 'both'" in said["error"]["message"]


async def test_a_clients_address_is_the_one_that_a_trusted_proxy_reports(gateway, worker):
    only = acme(addresses=["203.0.113.0/24"])
    forwarded = {"X-Forwarded-For": "203.0.113.9"}
    async with gateway(worker, tenants=only) as running:
        assert (await asked(running, **forwarded))[0] == 403
    trusting = {"listen.trusted_proxies": '["127.0.0.0/8"]'}
    async with gateway(worker, tenants=only, **trusting) as running:
        assert (await asked(running, **forwarded))[0] == 200


async def test_a_client_that_guesses_keys_has_to_wait_and_a_right_key_does_not(gateway, worker):
    async with gateway(worker, **{"authentication.failures_per_minute_max": 2}) as running:
        wrong = {"Authorization": "Bearer rg-wrong"}
        found = [await asked(running, path, **wrong) for path in ("/v1/models", "/v1/chat/completions")]
        assert [each[:2] for each in found] == [(401, "invalid_api_key")] * 2
        status, code, headers = await asked(running, **wrong)
        assert (status, code) == (429, "too_many_failures")
        assert 0 < int(headers["retry-after"]) <= 30
        assert headers["x-should-retry"] == "false"
        assert (await asked(running))[0] == 200


async def test_a_key_comes_as_x_api_key_too(gateway, worker):
    async with gateway(worker) as running:
        async with running.http.get(
            f"{running.url}/v1/models", headers={"x-api-key": running.keys["acme"].text}
        ) as response:
            assert response.status == 200
