"""Workers that join and leave while a gateway runs, and the commands for it: scripted workers, real Valkey."""

import asyncio
import json
import sys

import pytest

from gateway.discovery import discovery, worker_registry
from gateway.discovery.registration import keep_registered
from gateway.discovery.worker_registry import WorkerRegistry
from radix_cache.redis.scripts import ScriptCaller
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.conftest import EmbeddedWorker
from tests.stage.command_line import run_command
from workers.worker import Health


async def workers(running, *arguments):
    """`radixgate workers ...` beside this gateway: its exit code and both its outputs."""
    settings = running.here.gateway.settings
    chosen = [
        *("--set", f"redis.url={settings.redis.url}", "--set", f"redis.prefix={settings.redis.prefix}"),
        *("--set", "discovery=[{kind: redis}]"),
    ]
    return await asyncio.to_thread(run_command, "workers", *arguments, *chosen)


def up(running, name):
    fleet = running.here.gateway.fleet
    return name in fleet and fleet[name].health.state.value == "up"


async def served(running, count=4):
    for number in range(count):
        async with running.chat(f"question {number}") as response:
            assert response.status == 200, await response.text()


async def test_a_worker_that_is_added_serves_and_one_that_is_removed_loses_no_stream(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        settings = {"discovery": "[{kind: redis}]", "routing.policy": "round_robin"}
        async with gateway(one, **settings) as running:
            code, _, err = await workers(running, "add", "late", two.url, "--kind", "sglang")
            assert (code, err) == (0, "")
            await running.until(lambda: up(running, "late"), 60)
            await served(running)
            assert len(two.seen) == 2

            two.then(gap=0.3, tokens=6)
            one.then(gap=0.3, tokens=6)
            streams = [running.chat("long", stream=True) for _ in range(2)]
            answers = [await stream for stream in streams]
            code, _, err = await workers(running, "remove", "late")
            assert (code, err) == (0, "")
            for answer in answers:
                assert (await answer.text()).rstrip().endswith("[DONE]")
            await running.until(lambda: "late" not in running.here.gateway.fleet, 60)
            await served(running, 2)
            assert len(two.seen) == 3
            await running.until(lambda: running.idle)


async def test_a_worker_that_is_drained_gets_no_requests_from_any_gateway_until_it_is_resumed(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two, gateway(one, two) as running:
        code, _, noted = await workers(running, "drain", "w1")
        assert (code, "worker w1 is neither in these settings nor in the registry" in noted) == (0, True)
        fleet = running.here.gateway.fleet
        await running.until(lambda: fleet["w1"].health.state.value == "draining", 60)
        await served(running)
        assert two.seen == []
        _, out, _ = await workers(running, "list")
        # It is of the gateway's settings, not of this command's.
        assert [line.split() for line in out.splitlines()[1:]] == [["w1", "elsewhere", "draining"]]
        assert (await workers(running, "resume", "w1"))[0] == 0
        await running.until(lambda: up(running, "w1"), 60)


async def test_workers_are_listed_with_the_slots_of_the_settings(gateway):
    async with ScriptedWorker() as one, gateway(one) as running:
        settings = f"workers=[{{id: w0, url: {one.url}, slots: 256}}, {{id: w1, url: {one.url}}}]"
        _, out, _ = await workers(running, "list", "--set", settings)
        assert [line.split()[:4] for line in out.splitlines()] == [
            ["worker", "kind", "url", "slots"],
            ["w0", "auto", one.url, "256"],
            ["w1", "auto", one.url, "settings"],
        ]
        _, out, _ = await workers(running, "list", "--json", "--set", settings)
        assert [json.loads(line)["slots"] for line in out.splitlines()] == [256, None]


async def test_workers_are_listed_with_the_slots_that_their_engines_report(gateway):
    async with ScriptedWorker() as one, gateway(one) as running:
        running.here.gateway.fleet["w0"].known_slots = 32
        settings = f"workers=[{{id: w0, url: {one.url}}}, {{id: w0b, url: {one.url}}}]"
        admin = ("--set", f"admin.port={running.admin.rpartition(':')[2]}")
        _, out, _ = await workers(running, "list", "--json", "--set", settings, *admin)
        assert [json.loads(line)["slots"] for line in out.splitlines()] == [32, None]


async def test_workers_are_listed_with_their_state_and_its_cause(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two, gateway(one, two) as running:
        two.ready = False
        await running.until(lambda: running.here.gateway.fleet["w1"].health.state.value == "down", 60)
        settings = f"workers=[{{id: w0, url: {one.url}}}, {{id: w1, url: {two.url}}}]"
        admin = ("--set", f"admin.port={running.admin.rpartition(':')[2]}")
        _, out, _ = await workers(running, "list", "--set", settings, *admin)
        assert [line.split()[4:] for line in out.splitlines()[1:]] == [
            ["up"],
            ["down:", "status", "503", "from", "/ready"],
        ]


async def test_a_worker_is_drained_put_to_sleep_and_woken(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        await two.stop()
        for path in ("/release_memory_occupation", "/resume_memory_occupation"):
            two.others[path] = ("application/json", b"{}")
        await two.start()
        async with gateway(one, discovery="[{kind: redis}]") as running:
            assert (await workers(running, "add", "w1", two.url, "--kind", "sglang"))[0] == 0
            fleet = running.here.gateway.fleet
            await running.until(lambda: up(running, "w1"), 60)
            assert (await workers(running, "sleep", "w1"))[0] == 0
            assert len(two.seen) == 1
            await running.until(lambda: fleet["w1"].health.state.value == "draining", 60)
            assert (await workers(running, "wake", "w1"))[0] == 0
            assert len(two.seen) == 2
            await running.until(lambda: up(running, "w1"), 60)
            two.other_status = 500
            status, _, said = await workers(running, "sleep", "w1")
            assert (status, "status 500 from /release_memory_occupation" in said) == (1, True)
            assert (await workers(running, "wake", "nobody"))[0] == 1


async def test_a_worker_that_no_more_renews_its_lease_leaves_and_so_do_its_counters(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        settings = {"discovery": "[{kind: redis}]", "routing.policy": "round_robin"}
        async with gateway(one, **settings) as running:
            settings = running.here.gateway.settings
            redis = ScriptCaller(settings.redis.url)
            registry = WorkerRegistry(redis, settings.redis.prefix)
            lent = {"id": "lent", "kind": "sglang", "url": two.url}
            await registry.put(lent, lease_seconds=600)
            await running.until(lambda: up(running, "lent"), 60)
            await served(running)
            await registry.put(lent, lease_seconds=1)
            await running.until(lambda: "lent" not in running.here.gateway.fleet, 60)
            async with running.http.get(running.admin + "/metrics") as page:
                text = await page.text()
            assert ('radixgate_worker_requests_total{worker="w0"}' in text, "lent" in text) == (True, False)
            assert await registry.registered() == []
            await redis.close()


async def test_changes_of_the_registry_are_announced_and_renewed_leases_are_not(gateway, monkeypatch):
    # Without notifications nothing would be read again before the test is over.
    monkeypatch.setattr(worker_registry, "READ_SECONDS", 600)
    monkeypatch.setattr(discovery, "DRAINED_SECONDS", 600)
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        async with gateway(one, discovery="[{kind: redis}]") as running:
            settings = running.here.gateway.settings
            redis = ScriptCaller(settings.redis.url)
            registry = WorkerRegistry(redis, settings.redis.prefix)
            fleet, changes = running.here.gateway.fleet, running.here.gateway.discovery.registry.changes
            lent = {"id": "lent", "kind": "sglang", "url": two.url}
            try:
                await registry.put(lent, lease_seconds=600)
                await running.until(lambda: up(running, "lent"))
                counted = changes.count
                await registry.put(lent, lease_seconds=600)
                await registry.drain(["lent"])
                await running.until(lambda: fleet["lent"].health.state.value == "draining")
                assert changes.count == counted + 1
                await registry.resume(["lent"])
                await running.until(lambda: up(running, "lent"))
                await registry.remove("lent")
                await running.until(lambda: "lent" not in fleet)
            finally:
                await redis.close()


async def test_one_that_is_added_while_its_old_lease_is_dropped_stays(gateway):
    async with ScriptedWorker() as one, gateway(one) as running:
        settings = running.here.gateway.settings
        redis = ScriptCaller(settings.redis.url)
        worker = {"id": "again", "kind": "openai", "url": one.url}
        by_hand = WorkerRegistry(redis, settings.redis.prefix)

        class Between:
            """Adds it by hand after it was found to be gone, and before its id is dropped."""

            async def ask(self, command, *arguments):
                if command == "SREM":
                    await by_hand.put(worker, lease_seconds=None)
                return await redis.ask(command, *arguments)

        try:
            await redis.ask("SADD", f"{{{settings.redis.prefix}:workers}}:ids", "again")
            await WorkerRegistry(Between(), settings.redis.prefix).registered()
            assert await by_hand.registered() == [worker]
        finally:
            await redis.close()


async def test_one_that_is_not_understood_keeps_no_other_from_coming(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        async with gateway(one, discovery="[{kind: redis}]") as running:
            redis = ScriptCaller(running.here.gateway.settings.redis.url)
            try:
                registry = WorkerRegistry(redis, running.here.gateway.settings.redis.prefix)
                newer = {"id": "newer", "kind": "openai", "url": two.url, "colour": "red"}
                await registry.put(newer, lease_seconds=None)
                tag = f"{{{running.here.gateway.settings.redis.prefix}:workers}}"
                await redis.ask("SET", f"{tag}:at:garbled", "{")
                await redis.ask("SADD", f"{tag}:ids", "garbled")
                assert (await workers(running, "add", "w9", two.url, "--kind", "openai"))[0] == 0
                await running.until(lambda: up(running, "w9"), 60)
                code, out, err = await workers(running, "list")
            finally:
                await redis.close()
    assert (code, err) == (0, "")
    told = {line.split()[0]: line for line in out.splitlines()}
    assert "invalid: colour: unknown setting" in told["newer"]
    assert "invalid" in told["garbled"]
    assert "invalid" not in told["w9"]


async def test_what_cannot_be_a_worker_is_refused(gateway):
    async with ScriptedWorker() as one, gateway(one) as running:
        for arguments, says in (
            (("add", "bad id", "http://h:1", "--kind", "vllm"), "radixgate: id: expected 1 to 64 letters"),
            (
                ("add", "w", "nowhere", "--kind", "vllm"),
                "radixgate: url: expected an http:// or https:// address",
            ),
            (("add", "w", "http://h:1", "--kind", "none"), "there is no kind 'none'"),
            (("remove", "nobody"), "nobody is not registered"),
        ):
            code, _, err = await workers(running, *arguments)
            assert code != 0
            assert says in err
            assert "Traceback" not in err


async def test_an_embedded_worker_registers_itself_serves_and_leaves_with_its_end(
    gateway, checkpoint, tmp_path
):
    async with ScriptedWorker() as one:
        async with gateway(one, discovery="[{kind: redis}]") as running:
            settings = running.here.gateway.settings
            own = EmbeddedWorker(
                checkpoint,
                tmp_path / "worker.log",
                *("--register", settings.redis.url, "--register-prefix", settings.redis.prefix),
                *("--register-id", "own"),
            )
            await asyncio.to_thread(own.start)
            try:
                await running.until(lambda: up(running, "own"), 60)
                async with running.chat("hello", model="tiny", max_tokens=4) as response:
                    assert response.status == 200, await response.text()
                assert await asyncio.to_thread(own.stop) == 0
                await running.until(lambda: "own" not in running.here.gateway.fleet, 60)
            finally:
                own.kill()


async def test_a_worker_registers_again_when_redis_has_forgotten_it(gateway):
    async with ScriptedWorker() as one, ScriptedWorker() as two:
        async with gateway(one, discovery="[{kind: redis}]") as running:
            settings = running.here.gateway.settings
            redis = ScriptCaller(settings.redis.url)
            registry = WorkerRegistry(redis, settings.redis.prefix)
            async with keep_registered(registry, {"id": "own", "kind": "sglang", "url": two.url}, 0.05):
                await running.until(lambda: up(running, "own"), 60)
                await registry.remove("own")
                await running.until(lambda: up(running, "own"), 60)
            assert await registry.registered() == []
            await redis.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--register", "nowhere"], "--register: "),
        (["--register", "redis://h:1", "--host", "0.0.0.0"], "--register-url: "),
        (["--register", "redis://h:1", "--register-id", "a b"], "--register-id: "),
    ],
    ids=["redis", "everywhere", "id"],
)
async def test_a_worker_that_cannot_register_ends_with_the_reason_before_it_loads(checkpoint, options, says):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "worker", "--model", str(checkpoint), *options),
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert says in err.decode()
    assert "Traceback" not in err.decode()


async def test_a_worker_without_a_kind_joins_when_it_has_answered(gateway):
    worker = ScriptedWorker()
    await worker.start()
    address, port = worker.url, int(worker.url.rpartition(":")[2])
    await worker.stop()
    async with gateway(workers=json.dumps([{"id": "w", "url": address}])) as running:
        async with running.chat() as early:
            assert early.status == 503
        await worker.start(port)
        await running.until(lambda: any(w.health.state is Health.UP for w in running.here.gateway.fleet))
        async with running.chat() as answer:
            assert answer.status == 200
        assert [w.kind for w in running.here.gateway.fleet] == ["openai"]
    await worker.stop()


async def test_a_worker_of_another_kind_than_in_the_settings_is_logged(gateway, caplog):
    worker = ScriptedWorker()
    worker.listed = b'{"data": [{"id": "m", "owned_by": "vllm"}]}'
    async with worker, gateway(worker, kind="sglang"):
        assert (
            "worker w0 has the kind sglang in the settings, but its list of models is that of kind vllm"
            in (caplog.text)
        )


async def demand(running):
    """What an autoscaler is told: waiting and running requests of the model."""
    async with running.http.get(running.admin + "/metrics") as response:
        text = await response.text()
    names = ("radixgate_waiting_requests", "radixgate_model_requests", "radixgate_model_streams")
    names += ("radixgate_waiting_tokens",)
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(names)]
    return {
        series: float(value) for series, _, value in lines if '"tiny"' in series and "batch" not in series
    }


async def test_a_model_without_workers_has_metrics_and_its_first_request_waits_for_the_first_worker(gateway):
    settings = {
        "discovery": "[{kind: redis}]",
        "models": "[{name: tiny, first_worker_seconds_max: 60}]",
    }
    async with ScriptedWorker(models=["tiny"]) as worker, gateway(**settings) as running:
        idle = await demand(running)
        assert set(idle.values()) == {0.0}
        assert 'radixgate_waiting_requests{class="chat",model="tiny"}' in idle
        assert 'radixgate_model_streams{model="tiny"}' in idle

        worker.then(tokens=2, gap=60)
        asked = asyncio.ensure_future(running.chat("anyone there?", model="tiny", stream=True).__aenter__())
        requests = 'radixgate_model_requests{model="tiny"}'
        waiting = 'radixgate_waiting_requests{class="chat",model="tiny"}'
        while (await demand(running))[waiting] != 1.0:
            await asyncio.sleep(0.05)
        assert (await demand(running))[requests] == 1.0
        code, _, err = await workers(running, "add", "first", worker.url, "--kind", "sglang")
        assert (code, err) == (0, "")
        answer = await asyncio.wait_for(asked, 60)
        assert answer.status == 200
        runs = await demand(running)
        assert (runs[waiting], runs[requests]) == (0.0, 1.0)
        answer.close()
        while (await demand(running))[requests] != 0.0:
            await asyncio.sleep(0.05)
