"""`radixgate worker --engine vllm|sglang`: a gateway finds a real engine, loses it and finds it again."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from gateway.discovery.worker_registry import WorkerRegistry
from radix_cache.redis.scripts import ScriptCaller
from tests.engines.conftest import KINDS
from tests.engines.launched import LaunchedWorker, gone
from tests.engines.processes import MODEL, START_SECONDS_MAX, Sglang, Vllm
from tests.engines.test_caches import foretold
from tests.engines.test_losses import health
from tests.integration.kv_index.test_kv_events import feed_of, held
from tests.integration.routing.test_prefix_cache_routing import conversation
from workers.launching.engine_flags import PAGE_SIZE

LOST_SECONDS_MAX = 90


@pytest.fixture(scope="module", params=KINDS)
def module_worker(request, checkpoint, tmp_path_factory, valkey):
    directory = tmp_path_factory.mktemp(request.param)
    new = {"vllm": Vllm, "sglang": Sglang}[request.param]
    worker = LaunchedWorker(new(checkpoint, directory / "engine.log"), directory, valkey.url)
    yield worker
    worker.close()


@pytest.fixture
def worker(module_worker):
    """The command runs; its engine may still be on its way."""
    if not module_worker.runs:
        module_worker.start()
    return module_worker


@pytest.fixture
def finding(gateway, worker, model_of):
    """A gateway that knows of no worker but those that have registered."""
    found = {"discovery": '[{"kind": "redis"}]', "redis.prefix": worker.prefix}
    return lambda: gateway(**found, **model_of(PAGE_SIZE[worker.engine.kind]))


async def is_up(running, worker):
    def up():
        assert worker.runs, worker.log.read_text()[-4000:]
        return "w0" in running.here.gateway.fleet and health(running) == "up"

    await running.until(up, seconds=START_SECONDS_MAX)


async def has_left(running):
    await running.until(lambda: "w0" not in running.here.gateway.fleet, seconds=LOST_SECONDS_MAX)


async def registered(running):
    settings = running.here.gateway.settings
    redis = ScriptCaller(settings.redis.url)
    try:
        return await WorkerRegistry(redis, settings.redis.prefix).registered()
    finally:
        await redis.close()


async def is_foretold_again(running, seed):
    """A prompt that it has not seen, twice."""
    assert await foretold(running, conversation(seed)) == (0, 0)
    predicted, reported = await foretold(running, conversation(seed))
    assert predicted == reported > 0
    assert held(running) == len(feed_of(running).follower) > 0


async def test_a_gateway_finds_a_launched_engine_serves_by_it_and_follows_its_cache(worker, finding):
    async with finding() as running:
        await is_up(running, worker)
        ((one,), (told,)) = running.here.gateway.fleet, await registered(running)
        assert (one.kind, told["id"]) == (worker.engine.kind, "w0")
        await is_foretold_again(running, 1)
        feed = feed_of(running)
        assert feed.subscriber.unreadable == feed.subscriber.gaps == 0


def listening(ports):
    """Return the IPv4 addresses at which a process listens on one of these ports."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = [(line.split()[1], line.split()[3]) for line in lines]
    at = [local.split(":") for local, state in sockets if state == "0A"]
    return {socket.inet_ntoa(bytes.fromhex(host)[::-1]) for host, port in at if int(port, 16) in ports}


async def test_an_engine_that_serves_this_machine_publishes_what_it_caches_to_this_machine(worker, finding):
    async with finding() as running:
        await is_up(running, worker)
        (one,) = running.here.gateway.fleet
        (source,) = one.report.events
        ports = {int(at.rpartition(":")[2]) for at in (source.endpoint, source.replay)}
        assert len(ports) == 2
        assert listening(ports) == {"127.0.0.1"}


async def test_load_and_speed_of_a_launched_sglang_are_received(worker, finding):
    if worker.engine.kind != "sglang":
        pytest.skip("vLLM has no load feed")
    async with finding() as running:
        await is_up(running, worker)
        (one,) = running.here.gateway.fleet
        await running.until(lambda: one.load.has_load_feed)
        # Requests reach it past the gateway. They overlap, so that there is one of them at every moment until the
        # gateway takes note, which may take longer than one request runs.
        direct = {"model": MODEL, "prompt": "once", "max_tokens": 600, "ignore_eos": True}
        url = running.here.gateway.discovery.settings_of(one.id).url

        async def ask_past_the_gateway():
            while not one.load.external.streams:
                async with running.http.post(f"{url}/v1/completions", json=direct) as response:
                    assert response.status == 200

        async with asyncio.TaskGroup() as outside:
            for _ in range(3):
                outside.create_task(ask_past_the_gateway())
            await running.until(lambda: one.load.external.streams >= 1)
            assert one.load.external.kv_tokens > 0
        await running.until(lambda: one.load.external.streams == 0)
        # What it counts is enough for a rate after some prompts.
        for seed in range(100, 250):
            await foretold(running, conversation(seed))
            if one.learnt.reported_ms_per_token is not None:
                break
        assert 0.001 < one.learnt.reported_ms_per_token < 1000


@pytest.mark.parametrize("dies", ["server", "worker"])
async def test_an_engine_that_is_killed_comes_back_by_itself_with_an_empty_cache(worker, finding, dies):
    async with finding() as running:
        await is_up(running, worker)
        await foretold(running, conversation(2))
        predicted, reported = await foretold(running, conversation(2))
        assert predicted == reported > 0
        before = worker.engine_processes()
        worker.kill(worker=dies == "worker")
        await has_left(running)
        assert await asyncio.to_thread(gone, before), before
        await is_up(running, worker)
        await is_foretold_again(running, 2)


async def test_stopping_the_command_finishes_what_runs_and_leaves_nothing(worker, finding):
    async with finding() as running:
        await is_up(running, worker)
        processes = worker.engine_processes()
        assert len(processes) > 1
        async with running.chat(
            model=MODEL,
            messages=conversation(3),
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=500,
            ignore_eos=True,
        ) as response:
            await response.content.readline()
            stopping = asyncio.create_task(asyncio.to_thread(worker.stop))
            await has_left(running)
            lines = [line async for line in response.content if line.startswith(b"data: ")]
        assert lines[-1].strip() == b"data: [DONE]"
        assert json.loads(lines[-2][6:])["usage"]["completion_tokens"] == 500
        assert await stopping == 0
        assert await asyncio.to_thread(gone, processes), processes
        assert await registered(running) == []


async def test_a_command_that_is_killed_takes_its_engine_with_it(worker, finding):
    async with finding() as running:
        await is_up(running, worker)
        processes = worker.engine_processes()
        assert len(processes) > 1
        worker.process.kill()
        await asyncio.to_thread(worker.process.wait)
        assert await asyncio.to_thread(gone, processes), processes
        # It was not taken out of the registry: its lease ends.
        await has_left(running)
