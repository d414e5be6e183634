"""Settings that are read again while streams go on: what is swapped, what waits, what changes nothing."""

import logging

import msgspec
import pytest

from gateway.reload import Reloader, differences, found_by_pid, tell
from gateway.settings.types import SettingsProblem
from gateway.settings.workers import Worker
from tests.fakes.scripted_worker import ScriptedWorker


def reloader_of(running, **changes):
    """Of a tree that differs in this from what the gateway has."""
    settings = running.here.gateway.settings
    return Reloader(running.here.gateway, (), lambda: msgspec.structs.replace(settings, **changes))


async def test_workers_join_and_leave_and_no_stream_is_lost(gateway):
    async with ScriptedWorker() as old, ScriptedWorker() as new, gateway(old) as running:
        old.then(tokens=40, gap=0.05)
        fleet = running.here.gateway.fleet
        async with running.chat(stream=True) as stream:
            await stream.content.readline()
            workers = (Worker(id="w1", kind="sglang", url=new.url),)
            assert reloader_of(running, workers=workers).reload() == []
            await running.until(lambda: any(w.id == "w1" and w.health.health == "up" for w in fleet))
            async with running.chat("elsewhere") as response:
                assert response.status == 200
            assert len(new.seen) == 1
            assert "w0" in fleet  # until its stream has ended
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        await running.until(lambda: "w0" not in fleet, seconds=10)


async def test_requests_are_routed_by_the_new_policy(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two, gateway(one, two) as running:
        settings = running.here.gateway.settings
        routing = msgspec.structs.replace(settings.routing, policy="round_robin")
        reloader_of(running, routing=routing).reload()
        for at in range(4):
            async with running.chat(f"text {at}") as response:
                assert response.status == 200
        assert (len(one.seen), len(two.seen)) == (2, 2)


async def test_what_needs_a_restart_is_named_and_not_quoted(gateway, caplog):
    caplog.set_level(logging.INFO)
    async with ScriptedWorker() as worker, gateway(worker) as running:
        settings = running.here.gateway.settings
        listen = msgspec.structs.replace(settings.listen, port=1)
        reloader = reloader_of(running, listen=listen, deployment_secret=None)
        assert reloader.reload() == ["deployment_secret", "listen.port"]
        assert "in force only after a restart: deployment_secret, listen.port" in caplog.text
        assert settings.deployment_secret.reveal() not in caplog.text


async def test_settings_that_are_wrong_change_nothing(gateway, caplog):
    def wrong():
        raise SettingsProblem("$.workers[0].url: expected a URL")

    async with ScriptedWorker() as worker, gateway(worker) as running:
        Reloader(running.here.gateway, (), wrong).reload()
        assert "nothing is changed: $.workers[0].url" in caplog.text
        async with running.chat() as response:
            assert response.status == 200


def test_gateways_are_found_by_their_state_directory(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("gateway.reload.os.kill", lambda pid, number: told.append(pid))
    assert tell(tmp_path) == []
    with found_by_pid(tmp_path):
        (tmp_path / "gateways" / "99999999").touch()  # of one that was killed
        assert tell(tmp_path) == told != []
    assert tell(tmp_path) == []
    assert list((tmp_path / "gateways").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "paths"),
    [({}, []), ({"id": "b"}, ["id"]), ({"models": ("m",), "role": "prefill"}, ["models", "role"])],
    ids=["none", "one", "two"],
)
def test_differences_are_paths(changes, paths):
    one = Worker(id="a", kind="vllm", url="http://h")
    assert sorted(differences(one, msgspec.structs.replace(one, **changes))) == paths
