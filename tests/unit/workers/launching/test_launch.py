"""Launched engines: their command lines, and a watch over their lives, with a scripted engine."""

import asyncio
import json
import os
import shlex
from contextlib import asynccontextmanager

import pytest

from radix_cache.match import WorkerId
from tests.fakes import scripted_engine
from tests.stage.ports import free_port
from workers.adapter import WorkerFailed, WorkerTarget
from workers.adapters.sglang import SglangAdapter
from workers.launching import engine_flags
from workers.launching.launch import (
    EngineLaunch,
    EngineTimeouts,
    LaunchedEngine,
    command_line,
    data_parallel_size,
    environment,
    redacted,
)
from workers.worker import Role


def launch(**more):
    given = {
        "engine": "sglang",
        "model": "/models/qwen",
        "python": "python",
        "host": "127.0.0.1",
        "port": 1234,
    }
    return EngineLaunch(**{**given, **more})


def line(**more):
    return shlex.join(command_line(launch(**more)))


def test_sglang_is_launched_with_what_a_gateway_makes_use_of():
    assert line(events_port=11, replay_port=12) == (
        "python -m sglang.launch_server --model-path /models/qwen --served-model-name /models/qwen "
        "--host 127.0.0.1 --port 1234 --page-size 16 --enable-cache-report --enable-metrics "
        "--enable-priority-scheduling --kv-events-config "
        '\'{"publisher":"zmq","endpoint":"tcp://*:11","replay_endpoint":"tcp://*:12"}\''
    )


def test_vllm_is_launched_with_what_a_gateway_makes_use_of():
    assert line(engine="vllm", served_model_name="qwen", events_port=11, replay_port=12) == (
        "python -m vllm.entrypoints.openai.api_server --model /models/qwen --served-model-name qwen "
        "--host 127.0.0.1 --port 1234 --block-size 32 --enable-prefix-caching --enable-prompt-tokens-details "
        "--scheduling-policy priority --kv-events-config "
        '\'{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:11","replay_endpoint":"tcp://*:12"}\''
    )


def test_events_are_published_where_the_engine_serves():
    assert (
        '\'{"publisher":"zmq","endpoint":"tcp://127.0.0.1:11","bind":true,"replay_endpoint":"tcp://127.0.0.1:12"}\''
        in line(events_port=11, replay_port=12, events_at="127.0.0.1")
    )


def test_vllm_listens_at_one_address_where_it_chooses_the_port():
    given = {"engine": "vllm", "events_port": 0, "replay_port": 0, "events_at": "10.0.0.7"}
    assert '"endpoint":"tcp://*:0","replay_endpoint":"tcp://*:0"' in line(**given)
    assert environment(launch(**given)) == {"VLLM_HOST_IP": "10.0.0.7"}
    assert environment(launch(**{**given, "events_port": 11})) == {}
    assert environment(launch(events_port=11, replay_port=12, events_at="10.0.0.7")) == {}


async def test_a_variable_that_is_set_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_HOST_IP", "10.9.9.9")
    program = tmp_path / "program"
    said = f'echo "$VLLM_HOST_IP $OTHER" > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/said\n'
    program.write_text(f"#!/bin/sh\n{said}sleep 60\n")
    program.chmod(0o755)
    given = {"VLLM_HOST_IP": "127.0.0.1", "OTHER": "ours"}
    engine = LaunchedEngine(
        [str(program)],
        silent,
        timeouts=EngineTimeouts(poll_seconds=0.01, stop_seconds=5.0),
        environment=given,
    )
    running = asyncio.create_task(engine.run())
    await until((tmp_path / "said").exists)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (tmp_path / "said").read_text() == "10.9.9.9 ours\n"


async def silent():
    raise WorkerFailed("silent")


def test_sglang_publishes_its_load_beside_its_events():
    assert line(events_port=11, replay_port=12, loads_port=13).endswith(
        " --load-publish-endpoint 'tcp://*:13'"
    )
    assert "--load-publish-endpoint" not in line(loads_port=13)
    assert "--load-publish-endpoint" not in line(engine="vllm", events_port=11, replay_port=12, loads_port=13)


@pytest.mark.parametrize("flag", ["--kv-events-config", "--load-publish-endpoint"], ids=["events", "loads"])
def test_where_the_caller_sets_how_to_publish_the_load_feed_is_the_callers_too(flag):
    words = line(events_port=11, replay_port=12, loads_port=13, more=(flag, "theirs"))
    assert "tcp://*:13" not in words


@pytest.mark.parametrize("more", [("--page-size", "64"), ("--page-size=64",)], ids=["two-words", "one-word"])
def test_what_the_caller_adds_wins(more):
    words = line(more=(*more, "--tp", "2"))
    assert "--page-size 16" not in words
    assert words.endswith(f"{shlex.join(more)} --tp 2")


def test_a_page_size_can_be_chosen():
    assert "--block-size 64" in line(engine="vllm", page_size=64)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"role": Role.PREFILL}, "--disaggregation-mode prefill"),
        (
            {"role": Role.PREFILL, "bootstrap_port": 9001},
            "--disaggregation-mode prefill --disaggregation-bootstrap-port 9001",
        ),
        ({"role": Role.DECODE}, "--disaggregation-mode decode"),
        (
            {"engine": "vllm", "role": Role.DECODE},
            '--kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"kv_both"}\'',
        ),
    ],
    ids=["prefill", "prefill-with-port", "decode", "vllm"],
)
def test_halves_are_launched_as_such(given, flags):
    assert line(**given).endswith(flags)


def test_without_ports_no_events_are_published():
    assert "--kv-events-config" not in line()


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ((), 1),
        (("--dp-size", "4"), 4),
        (("--tp", "2", "--data-parallel-size=8"), 8),
        (("-dp", "2", "--dtype", "float32"), 2),
        (("--dp-size",), 1),
        (("--dp-size", "many"), 1),
    ],
    ids=["none", "two-words", "one-word", "short", "nothing-behind", "no-number"],
)
def test_the_ranks_are_those_that_the_caller_sets(more, count):
    assert data_parallel_size(more) == count


def test_what_is_shown_of_a_command_line_has_no_secrets():
    words = ["python", "--api-key", "s3cr3t", "other", "--hf-token=s3cr3t", "--max-total-tokens", "7"]
    assert redacted(words) == "python --api-key '***' '***' '--hf-token=***' --max-total-tokens 7"


def test_the_doctor_recommends_the_same_flags():
    flags = (*engine_flags.CACHE_REPORT["sglang"], *engine_flags.page_size_flags("sglang"))
    assert all(flag in line() for flag in flags)


# Its life.

PORT = 0


@pytest.fixture
def program(tmp_path):
    return scripted_engine.make(tmp_path)


@asynccontextmanager
async def living(program, port, **timeouts):
    adapter = SglangAdapter(WorkerTarget(id=WorkerId("w"), url=f"http://127.0.0.1:{port}"))
    launch = EngineLaunch(engine="sglang", model="m", python=str(program), host="127.0.0.1", port=port)
    given = {
        "start_seconds": 30.0,
        "silent_seconds": 0.3,
        "stop_seconds": 0.5,
        "poll_seconds": 0.02,
        "restart_seconds": (0.05,),
        **timeouts,
    }
    engine = LaunchedEngine(command_line(launch), adapter.probe, timeouts=EngineTimeouts(**given))
    running = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        adapter.close()


@pytest.fixture
def port():
    return free_port()


async def until(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def starts(tmp_path):
    return [int(pid) for pid in (tmp_path / "starts").read_text().split()]


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


async def test_an_engine_is_up_once_it_answers_and_gone_once_it_is_stopped(program, port, tmp_path):
    async with living(program, port) as engine:
        await until(lambda: engine.state.up)
        assert json.loads((tmp_path / "argv.json").read_text())[:2] == ["-m", "sglang.launch_server"]
        child = int((tmp_path / "child").read_text())
        assert lives(child)
    assert not engine.state.up
    assert not lives(starts(tmp_path)[0])
    await until(lambda: not lives(child))


async def test_an_engine_that_dies_is_started_again(program, port, tmp_path):
    async with living(program, port) as engine:
        await until(lambda: engine.state.up)
        (tmp_path / "script").write_text("die")
        await until(lambda: engine.state.restarts == 1)
        assert not engine.state.up
        await until(lambda: engine.state.up)
        assert len(starts(tmp_path)) == 2


async def test_an_engine_that_falls_silent_is_started_again(program, port, tmp_path):
    async with living(program, port) as engine:
        await until(lambda: engine.state.up)
        (tmp_path / "script").write_text("silent")
        await until(lambda: engine.state.restarts == 1)
        (tmp_path / "script").unlink()
        await until(lambda: engine.state.up)
        assert not lives(starts(tmp_path)[0])


async def test_an_engine_that_does_not_come_up_in_time_is_started_again(program, port, tmp_path):
    (tmp_path / "script").write_text("silent")
    async with living(program, port, start_seconds=0.3) as engine:
        await until(lambda: engine.state.restarts >= 2)
        assert not engine.state.up


async def test_the_log_has_the_reason_why_an_engine_is_not_up(caplog):
    async def ask():
        raise WorkerFailed("status 401 from /v1/models")

    timeouts = EngineTimeouts(
        start_seconds=0.05, stop_seconds=5.0, poll_seconds=0.01, restart_seconds=(0.01,)
    )
    running = asyncio.create_task(LaunchedEngine(["sleep", "60"], ask, timeouts=timeouts).run())
    await until(lambda: any("status 401 from /v1/models" in line for line in caplog.messages))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_engine_that_does_not_heed_sigterm_is_killed(program, port, tmp_path):
    async with living(program, port) as engine:
        await until(lambda: engine.state.up)
        (tmp_path / "script").write_text("stubborn")
    assert not lives(starts(tmp_path)[0])


async def test_an_interpreter_that_is_not_there_is_an_error(tmp_path):
    engine = LaunchedEngine([str(tmp_path / "nothing")], lambda: asyncio.sleep(0))
    with pytest.raises(FileNotFoundError):
        await engine.run()
