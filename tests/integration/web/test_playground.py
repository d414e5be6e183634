"""The playground: an operator's chat request with a tenant's key."""

import pytest

from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.files.test_files_api import with_database

TOKEN = "f3b1c9d07a5e4c2b8d6f0a1e3c5b7d9f"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def sent(running, *, token=TOKEN, key=None, **more):
    headers = {"Authorization": f"Bearer {token}", **({"x-radixgate-key": key} if key else {})}
    url = f"{running.admin}/admin/v1/playground"
    async with running.http.post(url, json={**BODY, **more}, headers=headers) as response:
        return response.status, await response.text()


async def test_a_request_is_answered_and_counted_as_the_tenants_own(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"admin.token": TOKEN}) as running:
        key = running.keys["globex"].text
        status, text = await sent(running, key=key)
        assert (status, "w0 w1" in text) == (200, True)
        status, text = await sent(running, key=key, stream=True)
        assert (status, text.rstrip().endswith("[DONE]")) == (200, True)
        assert running.here.gateway.overview.tenants["globex"].total.requests == 2
        await running.until(lambda: running.idle)


async def test_limits_of_the_tenant_hold(gateway):
    settings = {"admin.token": TOKEN}
    limits = [{"requests": 1, "per": "hour"}]
    async with ScriptedWorker() as worker, gateway(worker, limits=limits, **settings) as running:
        key = running.keys["acme"].text
        assert (await sent(running, key=key))[0] == 200
        status, text = await sent(running, key=key)
        assert (status, "rate_limit_exceeded" in text) == (429, True)


async def test_without_a_right_key_nothing_is_sent(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"admin.token": TOKEN}) as running:
        for key in (None, "rg-wrong", TOKEN):
            assert (await sent(running, key=key))[0] == 401
        assert worker.seen == []


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 200)])
async def test_it_needs_the_role_operator(gateway, role, status):
    async with ScriptedWorker() as worker:
        async with gateway(worker, **{"admin.token": TOKEN}, **with_database()) as running:
            url, headers = f"{running.admin}/admin/v1/operators", {"Authorization": f"Bearer {TOKEN}"}
            async with running.http.post(url, json={"role": role, "name": "one"}, headers=headers) as made:
                token = (await made.json())["token"]
            assert (await sent(running, token=token, key=running.keys["acme"].text))[0] == status
        assert bool(worker.seen) == (status == 200)
