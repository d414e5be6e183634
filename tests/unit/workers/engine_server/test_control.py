"""The control endpoints, and clients that disconnect."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.unit.workers.engine_server.conftest import PauseAfter
from workers.engine_server.options import WorkerOptions
from workers.engine_server.serving import WorkerCannotListen, serve

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "The gateway", "max_tokens": 6000, "ignore_eos": True}
Client = Any
Serve = Callable[..., Any]


async def test_the_server_describes_its_model_and_settings(serving: Serve, model: Path) -> None:
    async with serving(served_model_name="org/tiny", max_running_requests=7) as client:
        status, info = await client.get("/server_info")
        assert status == 200
        assert len(info.pop("instance_id")) == 34
        assert info.pop("version")
        events = info.pop("kv_events")
        assert (events["publisher"], events["block_size"], events["dp_size"]) == ("zmq", 16, 1)
        assert {
            "model_path": str(model),
            "served_model_name": "org/tiny",
            "page_size": 16,
            "context_length": 8192,
            "max_total_num_tokens": 16384,
            "max_running_requests": 7,
            "dtype": "float32",
            "device": "cpu",
            "attention_backend": "sdpa",
            "kv_cache_dtype": "float32",
            "disaggregation_mode": "null",
            "disaggregation_bootstrap_port": None,
            "pid": os.getpid(),
        } == info
        _, models = await client.get("/v1/models")
        assert models["object"] == "list"
        (entry,) = models["data"]
        assert (entry["id"], entry["object"], entry["owned_by"]) == ("org/tiny", "model", "radixgate")
        assert isinstance(entry["created"], int)
        assert (200, entry) == await client.get("/v1/models/org/tiny")


async def test_the_instance_id_is_new_with_every_start_and_every_flush(serving: Serve) -> None:
    seen = []
    for _ in range(2):
        async with serving() as client:
            seen += [(await client.get("/server_info"))[1]["instance_id"] for _ in range(2)]
            await client.post("/flush_cache", {})
            seen.append((await client.get("/server_info"))[1]["instance_id"])
    assert seen[0] == seen[1]
    assert seen[3] == seen[4]
    assert len(set(seen)) == 4


async def test_loads_have_sglangs_names(client: Client) -> None:
    _, body = await client.get("/v1/loads")
    assert {"timestamp", "version", "loads"} == body.keys()
    (loads,) = body["loads"]
    assert {
        "dp_rank",
        "timestamp",
        "num_running_reqs",
        "num_waiting_reqs",
        "disaggregation",
        "num_waiting_uncached_tokens",
        "num_used_tokens",
        "max_total_num_tokens",
        "max_running_requests",
        "token_usage",
        "gen_throughput",
        "cache_hit_rate",
    } == loads.keys()
    assert tuple(
        loads[name] for name in ("num_running_reqs", "num_used_tokens", "token_usage", "max_total_num_tokens")
    ) == (0, 0, 0.0, 16384)


async def test_loads_show_what_runs_and_what_waits(serving: Serve) -> None:
    async with serving(max_running_requests=1) as client:
        tasks = [asyncio.create_task(client.post(TEXT, LONG))]
        await client.until(num_running_reqs=1)
        tasks.append(asyncio.create_task(client.post(TEXT, {**LONG, "prompt": [9] * 100})))
        await client.until(num_waiting_reqs=1)
        async with asyncio.timeout(60):
            while not (loads := await client.loads())["gen_throughput"]:
                await asyncio.sleep(0.005)
        assert loads["num_waiting_uncached_tokens"] == 100
        assert loads["num_used_tokens"] > 0
        assert 0 < loads["token_usage"] < 1
        await leave(tasks)
        await client.until_idle()


async def leave(tasks: list[asyncio.Task[Any]]) -> None:
    """As a client that closes its connection."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_a_worker_that_serves_is_healthy_and_ready(client: Client, path: str) -> None:
    assert (await client.get(path))[0] == 200


async def test_a_worker_that_shuts_down_is_neither_and_accepts_no_request(
    client: Client, pause_after: PauseAfter
) -> None:
    resume = pause_after(client, 3)
    running = asyncio.create_task(client.post(TEXT, {**LONG, "max_tokens": 300}))
    await client.until(num_running_reqs=1)
    drain = asyncio.create_task(client.worker.live_requests.drain(60))
    await asyncio.sleep(0)
    for path in ("/health", "/ready"):
        status, body = await client.get(path)
        assert (status, body["error"]["code"]) == (503, "shutting_down")
    status, body = await client.post(TEXT, {"prompt": "x"})
    assert (status, body["error"]["code"]) == (503, "shutting_down")
    assert not drain.done()
    resume()
    assert (await running)[1]["usage"]["completion_tokens"] == 300
    await asyncio.wait_for(drain, 60)


async def test_draining_ends_at_its_bound(client: Client) -> None:
    running = asyncio.create_task(client.post(TEXT, LONG))
    await client.until(num_running_reqs=1)
    await asyncio.wait_for(client.worker.live_requests.drain(0.05), 60)
    assert not running.done()
    await leave([running])


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_a_client_that_leaves_while_running_frees_its_blocks(client: Client, stream: bool) -> None:
    task = asyncio.create_task(client.post(TEXT, {**LONG, "stream": stream}))
    await client.until(num_running_reqs=1)
    await asyncio.sleep(0.05)
    await leave([task])
    await client.until_idle()
    assert len(client.worker.live_requests) == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_a_client_that_leaves_while_waiting_frees_its_place(serving: Serve, stream: bool) -> None:
    async with serving(max_running_requests=1) as client:
        running = asyncio.create_task(client.post(TEXT, LONG))
        await client.until(num_running_reqs=1)
        waiting = asyncio.create_task(client.post(TEXT, {**LONG, "stream": stream}))
        await client.until(num_waiting_reqs=1)
        await leave([waiting])
        await client.until(num_running_reqs=1, num_waiting_reqs=0)
        await leave([running])
        await client.until_idle()


async def test_a_client_that_leaves_after_some_frames_is_noticed(client: Client) -> None:
    async with client.session.post(client.url + CHAT, json=CHATTY) as response:
        assert (await response.content.readline()).startswith(b"data: ")
        assert (await client.loads())["num_running_reqs"] == 1
        response.close()
    await client.until_idle()


CHATTY = {
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
    "max_tokens": 6000,
    "ignore_eos": True,
}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("frame", [1, 2, 5])
async def test_a_client_that_leaves_while_something_is_written_makes_no_noise(
    client: Client, path: str, frame: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, written = web.StreamResponse.write, 0

    async def leave_first(response: web.StreamResponse, data: bytes) -> None:
        nonlocal written
        written += 1
        if written == frame:
            assert response._req is not None
            assert response._req.transport is not None
            response._req.transport.abort()
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", leave_first)
    with pytest.raises(aiohttp.ClientError):
        await client.stream(path, CHATTY if path == CHAT else LONG)
    await client.until_idle()
    assert written == frame
    assert not caplog.records


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
async def test_a_client_that_leaves_ends_all_its_choices(client: Client, stream: bool) -> None:
    task = asyncio.create_task(client.post(TEXT, {**LONG, "n": 3, "prompt": ["a", "b"], "stream": stream}))
    await client.until(num_running_reqs=6)
    await leave([task])
    await client.until_idle()
    # The engine knows before the handlers have left.
    async with asyncio.timeout(60):
        while len(client.worker.live_requests):
            await asyncio.sleep(0.005)


async def test_aborting_by_name_ends_all_choices(client: Client) -> None:
    task = asyncio.create_task(client.post(TEXT, {**LONG, "n": 3, "rid": "one"}))
    await client.until(num_running_reqs=3)
    await client.post("/abort_request", {"rid": "one"})
    status, body = await task
    assert status == 200
    assert [choice["finish_reason"] for choice in body["choices"]] == ["abort"] * 3


async def test_choices_that_the_queue_cannot_take_leave_nothing_behind(serving: Serve) -> None:
    async with serving(max_running_requests=1, waiting_max=4) as client:
        running = asyncio.create_task(client.post(TEXT, LONG))
        await client.until(num_running_reqs=1)
        waiting = asyncio.create_task(client.post(TEXT, {**LONG, "n": 2}))
        await client.until(num_waiting_reqs=2)
        assert (await client.post(TEXT, {**LONG, "n": 3}))[0] == 503
        await client.until(num_waiting_reqs=2)
        assert (await client.post(TEXT, {**LONG, "n": 5}))[0] == 400
        await leave([running, waiting])
        await client.until_idle()


async def test_aborting_by_name_ends_that_request_only(client: Client) -> None:
    tasks = [asyncio.create_task(client.post(TEXT, {**LONG, "rid": rid})) for rid in ("one", "two")]
    await client.until(num_running_reqs=2)
    assert await client.post("/abort_request", {"rid": "one"}) == (200, {"aborted": 1})
    status, body = await asyncio.wait_for(tasks[0], 60)
    assert (status, body["choices"][0]["finish_reason"]) == (200, "abort")
    assert not tasks[1].done()
    assert await client.post("/abort_request", {"rid": "tw"}) == (200, {"aborted": 0})
    assert await client.post("/abort_request", {"abort_all": True}) == (200, {"aborted": 1})
    await asyncio.wait_for(tasks[1], 60)
    await client.until_idle()


async def test_a_stream_that_is_aborted_ends_with_that_reason_and_done(client: Client) -> None:
    reading = asyncio.create_task(client.stream(TEXT, {**LONG, "rid": "a"}))
    await client.until(num_running_reqs=1)
    await client.post("/abort_request", {"rid": "a"})
    *_, last, done = await asyncio.wait_for(reading, 60)
    assert (last["choices"][0]["finish_reason"], done) == ("abort", "[DONE]")


async def test_a_request_that_waits_can_be_aborted(serving: Serve) -> None:
    async with serving(max_running_requests=1) as client:
        running = asyncio.create_task(client.post(TEXT, LONG))
        await client.until(num_running_reqs=1)
        waiting = asyncio.create_task(client.post(TEXT, {**LONG, "rid": "w"}))
        await client.until(num_waiting_reqs=1)
        await client.post("/abort_request", {"rid": "w"})
        _, body = await asyncio.wait_for(waiting, 60)
        assert (
            body["choices"][0]["finish_reason"],
            body["choices"][0]["text"],
            body["usage"]["completion_tokens"],
        ) == ("abort", "", 0)
        await leave([running])


async def test_the_same_name_twice_is_two_requests_that_are_aborted_together(client: Client) -> None:
    tasks = [asyncio.create_task(client.post(TEXT, {**LONG, "rid": "same"})) for _ in range(2)]
    await client.until(num_running_reqs=2)
    assert await client.post("/abort_request", {"rid": "same"}) == (200, {"aborted": 2})
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def test_an_abort_must_name_a_request(client: Client) -> None:
    for body in ({}, {"rid": ""}, {"rid": None}, {"abort_all": False}):
        status, answer = await client.post("/abort_request", body)
        assert (status, answer["error"]["param"]) == (400, "rid")


async def test_flushing_drops_every_prefix_but_not_while_requests_run(client: Client) -> None:
    asked = {"prompt": [9] * 40, "max_tokens": 1}

    async def cached() -> int:
        return (await client.post(TEXT, asked))[1]["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [await cached(), await cached()] == [0, 32]
    running = asyncio.create_task(client.post(TEXT, LONG))
    await client.until(num_running_reqs=1)
    status, body = await client.post("/flush_cache", {})
    assert (status, body["error"]["code"]) == (400, "requests_running")
    await leave([running])
    await client.until_idle()
    assert (await client.post("/flush_cache", {}))[0] == 200
    assert [await cached(), await cached()] == [0, 32]


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": []}, {"messages": []}, {"prompt": 5}])
async def test_tokenizing_needs_a_prompt_or_messages(client: Client, body: dict[str, Any]) -> None:
    assert (await client.post("/tokenize", body))[0] == 400


async def test_an_empty_text_has_no_tokens(client: Client) -> None:
    _, body = await client.post("/tokenize", {"prompt": ""})
    assert (body["tokens"], body["count"]) == ([], 0)


async def test_a_worker_can_listen_on_a_unix_socket(serving: Serve, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    async with serve(WorkerOptions(model=model, unix_socket=path, kv_tokens=256)) as worker:
        assert f"unix:{path}" == worker.url
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
            async with session.get("http://worker/health") as response:
                assert response.status == 200
    assert not path.exists()


async def test_an_address_that_cannot_be_had_is_one_clear_error(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkerCannotListen, match=rf"127\.0\.0\.1:{port}: .*in use"):
            async with serve(WorkerOptions(model=model, port=port)):
                pass
    with pytest.raises(WorkerCannotListen, match="no-such-host"):
        async with serve(WorkerOptions(model=model, host="no-such-host.invalid", port=0)):
            pass
    with pytest.raises(WorkerCannotListen, match="missing"):
        async with serve(WorkerOptions(model=model, unix_socket=tmp_path / "missing" / "w.sock")):
            pass


async def test_every_baseline_can_be_served_and_answers_the_same(serving: Serve) -> None:
    asked = {"prompt": [9] * 40, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "n": 2}
    texts = set()
    for options in (
        {},
        {"kv_layout": "none", "batching": "static", "chunked_prefill": False, "prefix_caching": False},
        {"kv_layout": "contiguous", "prefix_caching": False},
    ):
        async with serving(**options) as client:
            status, body = await client.post(TEXT, asked)
            assert status == 200
            texts.add(tuple(choice["text"] for choice in body["choices"]))
    assert len(texts) == 1
