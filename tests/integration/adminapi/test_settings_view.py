"""The settings in force with their sources, as the admin API shows them."""

import dataclasses

import msgspec

from gateway.runtime.reload import Reloader
from gateway.settings.sources import LoadedSettings
from tests.conftest import SECRET
from tests.fakes.scripted_worker import ScriptedWorker


async def shown(running, query="", status=200):
    async with running.http.get(f"{running.admin}/admin/v1/settings?{query}") as response:
        assert response.status == status
        return await response.json(content_type=None)


def source_of(found, setting):
    return next(each["source"] for each in found["data"] if each["setting"] == setting)


async def test_every_setting_has_its_value_and_its_source_and_no_secret(gateway):
    async with ScriptedWorker() as worker, gateway(worker, **{"queueing.hold": "0.5"}) as running:
        found = await shown(running, "limit=5000")
        assert source_of(found, "queueing.hold") == "--set queueing.hold"
        assert source_of(found, "routing.policy") == "default"
        assert found["total"] == len(found["data"])
        assert SECRET not in str(found)
        assert running.keys["acme"].hash not in str(found)
        assert running.keys["acme"].id in str(found)


async def test_settings_are_filtered_and_paged(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        changed = await shown(running, "changed=true&find=listen")
        assert [each["setting"] for each in changed["data"]] == ["listen.port"]
        first = await shown(running, "find=queueing&limit=2")
        second = await shown(running, "find=queueing&limit=2&offset=2")
        assert len(first["data"]) == len(second["data"]) == 2
        assert first["data"] != second["data"]
        assert first["total"] == second["total"] > 4
        for wrong in ("changed=perhaps", "limit=-1", "offset=x", "nonsense=1"):
            await shown(running, wrong, status=400)


async def test_after_a_reload_the_new_settings_and_those_that_wait_are_shown(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        before = running.here.gateway.in_force.loaded
        queueing = msgspec.structs.replace(before.settings.queueing, hold=None)
        listen = msgspec.structs.replace(before.settings.listen, port=1)
        changed = msgspec.structs.replace(before.settings, queueing=queueing, listen=listen)
        sources = {**before.sources, ("queueing", "hold"): "gateway.yaml"}
        read = dataclasses.replace(before, settings=changed, sources=sources)
        await Reloader(running.here.gateway, (), lambda: read).reload()
        found = await shown(running, "limit=5000")
        assert source_of(found, "queueing.hold") == "gateway.yaml"
        assert found["awaiting_restart"] == ["listen.port"]
        assert isinstance(running.here.gateway.in_force.loaded, LoadedSettings)
