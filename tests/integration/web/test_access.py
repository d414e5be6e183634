"""Access without a tenant's key: foreign web pages, guesses at the admin token, probes, scrapers."""

import os
import stat

import pytest

from gateway.settings.sources import load_settings
from gateway.settings.types import SettingsProblem
from tests.fakes.scripted_worker import ScriptedWorker

TOKEN = "7be41c0d9a5f4e3288c6d1b0f7a9e253"
METRICS_TOKEN = "c2b8f05e61d94a7fb3e07a1946d8c5ef"


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


async def status_of(running, url, method="GET", **headers):
    async with running.http.request(
        method, url, headers={k.replace("_", "-"): v for k, v in headers.items()}
    ) as got:
        await got.read()
        return got.status


async def chat(running, **headers):
    """Send what a page may send without asking first: JSON as plain text."""
    body = '{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    headers = {"content-type": "text/plain", **{k.replace("_", "-"): v for k, v in headers.items()}}
    async with running.http.post(f"{running.url}/v1/chat/completions", data=body, headers=headers) as got:
        return got.status, (await got.json()).get("error", {}).get("code")


@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://localhost:3000"},
        {"Sec_Fetch_Site": "cross-site", "Origin": "http://127.0.0.1"},
    ],
)
async def test_without_tenants_no_foreign_page_spends_the_gpu(gateway, sent):
    async with ScriptedWorker() as worker, gateway(worker, tenants={}) as running:
        assert await chat(running, **sent) == (403, "origin_not_allowed")
        assert worker.seen == []
        assert await status_of(running, f"{running.url}/v1/models", **sent) == 200


async def test_without_tenants_programs_own_pages_and_listed_pages_are_answered(gateway):
    listed = {"listen.origins": '["https://chat.example.com"]'}
    async with ScriptedWorker() as worker, gateway(worker, tenants={}, **listed) as running:
        for sent in (
            {},
            {"Origin": running.url},
            {"Sec_Fetch_Site": "same-origin", "Origin": running.url},
            {"Sec_Fetch_Site": "cross-site", "Origin": "https://chat.example.com"},
        ):
            assert (await chat(running, **sent))[0] == 200
        assert (await chat(running, Origin="https://evil.example"))[0] == 403


async def test_with_keys_pages_are_answered_as_before(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        sent = {**running.headers(), "Origin": "https://any.example", "Sec_Fetch_Site": "cross-site"}
        assert (await chat(running, **sent))[0] == 200


@pytest.mark.parametrize("path", ["admin/v1/overview", "ui/session"])
async def test_guesses_at_the_admin_token_are_slowed_and_the_right_one_is_no_exception(gateway, path):
    few = {"admin.token": TOKEN, "authentication.failures_per_minute_max": "5"}
    async with ScriptedWorker() as worker, gateway(worker, **few) as running:
        url = f"{running.admin}/{path}"
        assert await status_of(running, url, **bearer(TOKEN)) == 200
        wrong = [await status_of(running, url, **bearer(f"{at:032x}")) for at in range(8)]
        assert wrong == [401] * 5 + [429] * 3
        assert await status_of(running, url, **bearer(TOKEN)) == 429
        assert await status_of(running, f"{url}?token={TOKEN}") == 401


async def test_the_admin_token_is_taken_from_the_header_only_and_never_put_into_a_cookie(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"admin.token": TOKEN}) as running:
        async with running.http.get(f"{running.admin}/ui/?token={TOKEN}") as answer:
            assert (answer.status, answer.cookies) == (200, {})
        for path in ("ui/session", "admin/v1/overview", "admin/v1/requests"):
            url = f"{running.admin}/{path}"
            assert await status_of(running, f"{url}?token={TOKEN}") == 401
            assert await status_of(running, url, Cookie=f"radixgate_admin={TOKEN}") == 401
            assert await status_of(running, url, **bearer(TOKEN)) == 200


@pytest.mark.parametrize("weak", ["sesame", "x" * 64, "12345678901234567890", "an operator's token"])
@pytest.mark.parametrize("name", ["token", "metrics_token"])
def test_a_token_that_can_be_guessed_is_no_setting(weak, name):
    worker = '[{"id": "w", "kind": "vllm", "url": "http://w"}]'
    with pytest.raises(SettingsProblem, match=rf"admin\.{name}: the token can be guessed") as problem:
        load_settings(None, {}, [f"workers={worker}", f"admin.{name}={weak!r}"])
    assert weak not in str(problem.value)


async def test_probes_are_answered_whatever_host_they_name(gateway):
    async with ScriptedWorker() as worker, gateway(worker, tenants={}) as running:
        for host in ("10.0.0.7:8001", "evil.example", ""):
            for path in ("live", "ready"):
                assert await status_of(running, f"{running.admin}/health/{path}", Host=host) == 200
            assert await status_of(running, f"{running.admin}/metrics", Host=host) == 403
            assert await status_of(running, f"{running.admin}/admin/v1/overview", Host=host) == 403


async def test_metrics_of_loopback_answer_to_its_names_also_where_there_is_an_admin_token(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"admin.token": TOKEN}) as running:
        url = f"{running.admin}/metrics"
        assert await status_of(running, url) == 200
        assert await status_of(running, url, Host="evil.example") == 403


async def test_metrics_may_have_a_token(gateway):
    tokens = {"admin.token": TOKEN, "admin.metrics_token": METRICS_TOKEN}
    async with ScriptedWorker() as worker, gateway(worker, **tokens) as running:
        url = f"{running.admin}/metrics"
        assert await status_of(running, url) == 401
        assert await status_of(running, url, **bearer("x" * 32)) == 401
        assert await status_of(running, url, Host="prometheus.internal", **bearer(METRICS_TOKEN)) == 200
        assert await status_of(running, url, **bearer(TOKEN)) == 200
        # It is for the metrics alone.
        assert await status_of(running, f"{running.admin}/admin/v1/overview", **bearer(METRICS_TOKEN)) == 401


def test_the_address_of_a_worker_has_no_password():
    worker = '[{"id": "w", "kind": "vllm", "url": "http://ada:secret-word@w:8000"}]'
    with pytest.raises(SettingsProblem, match="no user and no password") as problem:
        load_settings(None, {}, [f"workers={worker}"])
    assert "secret-word" not in str(problem.value)


async def test_files_in_a_state_directory_that_others_may_read_are_for_this_user_alone(gateway, tmp_path):
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        kept = {"database.url": f"sqlite:///{tmp_path}/tenants.db", "redis.url": "embedded"}
        async with ScriptedWorker() as worker, gateway(worker, **kept) as running:
            async with running.chat() as response:
                assert response.status == 200
            await running.here.gateway.records.ledger.shipper.ship()
            found = [path for path in tmp_path.rglob("*") if path.is_file()]
            modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in found}
    finally:
        os.umask(before)
    assert {"tenants.db", "tenants.db-wal"} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
