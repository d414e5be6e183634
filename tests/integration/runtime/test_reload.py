"""Reload of settings while streams go on: which changes take effect, which need a restart, which are refused."""

import asyncio
import json
import logging

import msgspec
import pytest
from redis import from_url as valkey_at

from gateway.database.audit_log import chain_key
from gateway.database.tenant_store import TenantStore
from gateway.quotas import counter_recovery
from gateway.runtime.reload import Reloader, differences, notify_gateways, registered_for_reload
from gateway.settings.models import ModelSettings
from gateway.settings.sources import LoadedSettings
from gateway.settings.tenants import ApiKeySettings, LimitSettings
from gateway.settings.types import SettingsProblem
from gateway.settings.workers import DiscoverySettings, WorkerSettings
from gateway.tenants.key_lifecycle import KeyLifecycle
from gateway.tenants.keys import NewKey, new_key, pepper
from tests.conftest import SECRET
from tests.fakes.scripted_worker import ScriptedWorker

replace = msgspec.structs.replace


def reloader_of(running, **changes):
    """Of a tree that differs in this from what the gateway has."""
    settings = running.here.gateway.settings
    changed = LoadedSettings(settings=replace(settings, **changes), sources={})
    return Reloader(running.here.gateway, (), lambda: changed)


def with_key(running, tenant, key):
    """The tenants of the settings; this one has that key only."""
    given = (ApiKeySettings(id=key.id, hash=key.hash),)
    tenants = running.here.gateway.settings.tenants
    return tuple(replace(one, keys=given) if one.id == tenant else one for one in tenants)


async def status(running, tenant="acme", **more):
    async with running.chat(tenant=tenant, **more) as response:
        await response.read()
        return response.status


async def test_workers_join_and_leave_and_no_stream_is_lost(gateway):
    async with ScriptedWorker() as old, ScriptedWorker() as new, gateway(old) as running:
        old.then(tokens=40, gap=0.05)
        fleet = running.here.gateway.fleet
        async with running.chat(stream=True) as stream:
            await stream.content.readline()
            workers = (WorkerSettings(id="w1", kind="sglang", url=new.url),)
            assert await reloader_of(running, workers=workers).reload() == []
            await running.until(lambda: any(w.id == "w1" and w.health.state == "up" for w in fleet))
            async with running.chat("elsewhere") as response:
                assert response.status == 200
            assert len(new.seen) == 1
            assert "w0" in fleet  # until its stream has ended
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        await running.until(lambda: "w0" not in fleet, seconds=60)


async def test_requests_are_routed_by_the_new_policy(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two, gateway(one, two) as running:
        settings = running.here.gateway.settings
        routing = replace(settings.routing, policy="round_robin")
        await reloader_of(running, routing=routing).reload()
        for at in range(4):
            async with running.chat(f"text {at}") as response:
                assert response.status == 200
        assert (len(one.seen), len(two.seen)) == (2, 2)
        async with running.http.get(running.admin + "/admin/v1/overview") as response:
            assert (await response.json())["policy"] == "round_robin"


async def test_a_key_that_left_the_file_is_refused_and_its_stream_goes_on(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        old, new = running.keys["acme"], new_key(pepper(SECRET.encode()))
        gate = asyncio.Event()
        worker.then(tokens=5, until=gate)
        stream = asyncio.ensure_future(running.chat(stream=True).__aenter__())
        await running.until(lambda: worker.seen)
        worker.then(until=None)
        assert await reloader_of(running, tenants=with_key(running, "acme", new)).reload() == []
        assert await status(running) == 401
        running.keys["acme"] = new
        assert await status(running) == 200
        assert await status(running, "globex") == 200
        gate.set()
        async with await stream as response:
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        running.keys["acme"] = old
        assert await status(running) == 401


async def test_a_tenant_that_left_the_file_has_no_keys(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        tenants = running.here.gateway.settings.tenants
        reloader = reloader_of(running, tenants=tenants[:1])
        await reloader.reload()
        assert (await status(running), await status(running, "globex")) == (200, 401)
        # And back.
        reloader._read = reloader_of(running)._read
        await reloader.reload()
        assert await status(running, "globex") == 200


async def test_limits_of_a_plan_hold_from_the_next_request_on(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        (plan,) = running.here.gateway.settings.plans
        assert [await status(running) for _ in range(3)] == [200] * 3
        once = replace(plan, limits=(LimitSettings(requests=1, per="day"),))
        await reloader_of(running, plans=(once,)).reload()
        assert [await status(running) for _ in range(2)] == [200, 429]


async def test_after_a_flush_a_key_that_was_rotated_in_the_file_has_what_was_used(
    gateway, monkeypatch, tmp_path
):
    """Both are in the file for a while, and count as one: also where only the ledger knows what they used."""
    monkeypatch.setattr(counter_recovery, "WAIT_SECONDS_MAX", 60.0)
    at = {"database.url": f"sqlite:///{tmp_path}/tenants.db"}
    async with ScriptedWorker() as worker, gateway(worker, **at) as running:
        before, tenants = running.keys["acme"], running.here.gateway.settings.tenants
        after, budget = (
            new_key(pepper(SECRET.encode())),
            (LimitSettings(requests=3, per="day", reset="calendar"),),
        )
        both = (
            ApiKeySettings(id=before.id, hash=before.hash, limits=budget),
            ApiKeySettings(id=after.id, hash=after.hash, limits=budget, family=before.id),
        )
        changed = tuple(replace(one, keys=both) if one.id == "acme" else one for one in tenants)
        await reloader_of(running, tenants=changed).reload()
        running.keys["acme"] = after
        assert [await status(running) for _ in range(3)] == [200] * 3
        redis = running.here.gateway.settings.redis
        with valkey_at(redis.url) as client:
            for key in client.scan_iter(f"{redis.prefix}:{{*}}:*"):
                if b":used:" in key or key.endswith(b":whole"):
                    client.delete(key)
        assert await status(running) == 429


async def test_what_the_file_does_not_name_any_more_is_the_databases(gateway, tmp_path):
    at = {
        "database.url": f"sqlite:///{tmp_path}/tenants.db",
        "admin.token": "7be41c0d9a5f4e3288c6d1b0f7a9e253",
    }
    async with ScriptedWorker() as worker, gateway(worker, **at) as running:
        path, headers = (
            f"{running.admin}/admin/v1",
            {"Authorization": "Bearer 7be41c0d9a5f4e3288c6d1b0f7a9e253"},
        )
        async with running.http.put(path + "/tenants/acme", json={}, headers=headers) as response:
            assert response.status == 201, await response.text()
        store = TenantStore(running.here.gateway.records.ledger.database, chain_key(SECRET.encode()))
        stored = (await KeyLifecycle(store, pepper(SECRET.encode())).create("acme")).text
        in_file, kept = running.keys["acme"], running.here.gateway.settings.tenants
        running.keys["acme"] = in_database = NewKey(id="", text=stored, hash="")
        directory = running.here.gateway.records.directory
        await running.until(lambda: not directory.away)
        assert await status(running) == 401  # The file's tenant has the file's keys.
        reloader = reloader_of(running, tenants=kept[1:])
        await reloader.reload()
        assert await status(running) in (200, 503)
        await running.until(lambda: not any(directory._left_file.values()))
        assert await status(running) == 200
        running.keys["acme"] = in_file
        assert await status(running) == 401
        reloader._read = reloader_of(running)._read
        await reloader.reload()
        assert await status(running) == 200
        running.keys["acme"] = in_database
        assert await status(running) == 401


async def test_the_admin_api_has_the_plans_that_the_file_has_now(gateway, tmp_path):
    at = {
        "database.url": f"sqlite:///{tmp_path}/tenants.db",
        "admin.token": "7be41c0d9a5f4e3288c6d1b0f7a9e253",
    }
    headers = {"Authorization": "Bearer 7be41c0d9a5f4e3288c6d1b0f7a9e253"}

    async def put(running):
        url = f"{running.admin}/admin/v1/tenants/initech"
        async with running.http.put(url, json={"plan": "gold"}, headers=headers) as response:
            return response.status

    async with ScriptedWorker() as worker, gateway(worker, **at) as running:
        assert await put(running) in (400, 409)
        plans = running.here.gateway.settings.plans
        await reloader_of(running, plans=(*plans, replace(plans[0], name="gold"))).reload()
        assert await put(running) == 201


async def test_models_have_other_names_and_prices_from_the_next_request_on(gateway):
    models = {"models": json.dumps([{"name": "m", "aliases": ["old"]}])}
    async with ScriptedWorker() as worker, gateway(worker, **models) as running:
        assert (await status(running, model="old"), await status(running, model="new")) == (200, 404)
        renamed = (ModelSettings(name="m", aliases=("new",), context_length=8),)
        assert await reloader_of(running, models=renamed).reload() == []
        assert (await status(running, model="old"), await status(running, model="new")) == (404, 200)
        # One that the file does not name any more is still found at its worker.
        assert await reloader_of(running, models=()).reload() == []
        assert (await status(running), await status(running, model="new")) == (200, 404)


async def test_a_models_blocks_stay_as_they_are_until_a_restart(gateway, caplog):
    caplog.set_level(logging.INFO)
    models = {"models": json.dumps([{"name": "m", "aliases": ["old"]}])}
    async with ScriptedWorker() as worker, gateway(worker, **models) as running:
        changed = (ModelSettings(name="m", aliases=("new",), block_size=32),)
        assert await reloader_of(running, models=changed).reload() == ["models.m.block_size"]
        assert await status(running, model="new") == 200
        assert running.here.gateway.services.catalogue.find("m").block_size == 64


async def test_a_model_that_was_found_at_its_worker_is_named_later(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        named = (ModelSettings(name="m", aliases=("new",), block_size=32),)
        assert await reloader_of(running, models=named).reload() == ["models.m.block_size"]
        assert await status(running, model="new") == 200


async def test_a_waiting_request_has_its_turn_by_the_new_rules(gateway):
    settings = {"queueing.release_window_tokens": "1"}
    async with ScriptedWorker() as worker, gateway(worker, **settings) as running:
        gate = asyncio.Event()
        worker.then(until=gate)
        first = asyncio.ensure_future(running.chat("x" * 300).__aenter__())
        await running.until(lambda: worker.seen)
        waiting = [asyncio.ensure_future(running.chat("y" * 300).__aenter__()) for _ in range(2)]
        rooms = running.here.gateway.services.dispatch.rooms.all
        await running.until(lambda: len(rooms()["m"]) == 2)
        queueing = running.here.gateway.settings.queueing
        # Another policy: they wait on. A room for two: the next one is refused.
        reloader = reloader_of(
            running, queueing=replace(queueing, across="vtc", within="fcfs", waiting_requests_max=2)
        )
        assert await reloader.reload() == []
        await running.until(lambda: len(rooms()["m"]) == 2)
        assert await status(running) in (429, 503)
        # A wider window: they have their places at once.
        wider = reloader_of(running, queueing=replace(queueing, release_window_tokens=10_000))
        reloader._read = wider._read
        await reloader.reload()
        await running.until(lambda: len(worker.seen) == 3)
        gate.set()
        assert [(await task).status for task in (first, *waiting)] == [200] * 3
        await running.until(lambda: running.idle)


async def test_workers_do_not_go_before_discovery_that_waits_for_a_restart_can_find_any(gateway, caplog):
    """The file is right as a whole; what would be in force of it until the restart is not."""
    async with ScriptedWorker() as worker, gateway(worker) as running:
        found = (DiscoverySettings(kind="file", name="workers.yaml"),)
        reloader = reloader_of(running, workers=(), discovery=found)
        assert await reloader.reload() == []
        assert "nothing is changed: without a restart: $.workers: at least one worker" in caplog.text
        assert reloader.settings is running.here.gateway.settings
        assert "w0" in running.here.gateway.fleet
        assert await status(running) == 200


async def test_what_needs_a_restart_is_named_and_not_quoted(gateway, caplog):
    caplog.set_level(logging.INFO)
    async with ScriptedWorker() as worker, gateway(worker) as running:
        settings = running.here.gateway.settings
        listen = replace(settings.listen, port=1)
        queueing = replace(settings.queueing, whole_from_streams=False, hold=None)
        reloader = reloader_of(running, listen=listen, deployment_secret=None, queueing=queueing)
        late = ["deployment_secret", "listen.port", "queueing.whole_from_streams"]
        assert await reloader.reload() == late
        assert f"changed settings that need a restart: {', '.join(late)}" in caplog.text
        assert "the settings are reloaded: queueing.hold\n" in caplog.text
        assert settings.deployment_secret.reveal() not in caplog.text


async def test_settings_that_are_wrong_change_nothing(gateway, caplog):
    def wrong():
        raise SettingsProblem("$.workers[0].url: expected a URL")

    async with ScriptedWorker() as worker, gateway(worker) as running:
        await Reloader(running.here.gateway, (), wrong).reload()
        assert "nothing is changed: $.workers[0].url" in caplog.text
        async with running.chat() as response:
            assert response.status == 200


async def test_a_tokenizer_that_cannot_be_read_keeps_all_else_from_being_swapped(gateway, caplog, tmp_path):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        key = new_key(pepper(SECRET.encode()))
        models = (ModelSettings(name="other", tokenizer=str(tmp_path / "nowhere")),)
        await reloader_of(running, models=models, tenants=with_key(running, "acme", key)).reload()
        assert "nothing is changed: $.models[0].tokenizer" in caplog.text
        assert await status(running) == 200


def test_gateways_are_found_by_their_state_directory(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("gateway.runtime.reload.os.kill", lambda pid, number: told.append(pid))
    assert notify_gateways(tmp_path) == []
    with registered_for_reload(tmp_path):
        (tmp_path / "gateways" / "99999999").touch()  # of one that was killed
        assert notify_gateways(tmp_path) == told != []
    assert notify_gateways(tmp_path) == []
    assert list((tmp_path / "gateways").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "paths"),
    [({}, []), ({"id": "b"}, ["id"]), ({"models": ("m",), "role": "prefill"}, ["models", "role"])],
    ids=["none", "one", "two"],
)
def test_differences_are_paths(changes, paths):
    one = WorkerSettings(id="a", kind="vllm", url="http://h")
    assert sorted(differences(one, replace(one, **changes))) == paths


async def test_gateways_give_turns_together_as_the_policy_allows(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as one, gateway(worker) as other:
        queues = [at.here.gateway.services.dispatch.queue for at in (one, other)]
        await one.until(lambda: all(queue.shared for queue in queues))
        settings = one.here.gateway.settings
        reloader = reloader_of(one, queueing=replace(settings.queueing, across="fifo"))
        await reloader.reload()
        await one.until(lambda: not queues[0].shared)
        assert await status(one) == 200
        reloader._read = reloader_of(one)._read
        await reloader.reload()
        await one.until(lambda: queues[0].shared)
        assert await status(one) == 200
        await one.until(lambda: one.idle)
