"""The process: it says where it listens, drains on SIGTERM, and fails with one line."""

import asyncio
import json
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.stage.forks import WORKER, Fork, fork_module
from tests.unit.workers.engine_server.conftest import Serve
from workers import engine_server
from workers.engine_server.__main__ import main

ROOT = Path(engine_server.__file__).parents[2]
LONG = {"prompt": "The gateway", "max_tokens": 6000, "ignore_eos": True, "stream": True}


COMMAND = ("workers.engine_server", "--threads", "1")


async def start_program(*arguments: str) -> Process:
    command = [sys.executable, "-m", *COMMAND, *arguments]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, cwd=ROOT)


async def start_fork(*arguments: str) -> Fork:
    return await fork_module(*COMMAND, *arguments, directory=ROOT, imported=WORKER)


@asynccontextmanager
async def worker(
    model: Path, *arguments: str, start: Callable[..., Awaitable[Process | Fork]] = start_fork
) -> AsyncIterator[tuple[Process | Fork, str]]:
    process = await start("--model", str(model), "--port", "0", *arguments)
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        assert line.startswith("radixgate worker ready at http://127.0.0.1:"), line
        yield process, line.split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_sigterm_lets_streams_finish_and_ends_with_zero(model: Path) -> None:
    async with (
        worker(model, "--drain-seconds", "30", start=start_program) as (process, url),
        aiohttp.ClientSession() as session,
    ):
        body = {**LONG, "max_tokens": 600}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            await response.content.readline()
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                while True:
                    async with session.get(f"{url}/ready") as ready:
                        if ready.status == 503:
                            break
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_client_that_leaves_is_noticed_on_the_production_loop(model: Path) -> None:
    async with worker(model) as (_, url), aiohttp.ClientSession() as session:
        for stream in (True, False):
            asking = asyncio.create_task(ask(session, url, {**LONG, "stream": stream}))
            await until_running(session, url, 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until_running(session, url, 0)


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> bytes:
    async with session.post(f"{url}/v1/completions", json=body) as response:
        return await response.read()


async def until_running(session: aiohttp.ClientSession, url: str, count: int) -> None:
    async with asyncio.timeout(60):
        while True:
            async with session.get(f"{url}/v1/loads") as response:
                (loads,) = (await response.json())["loads"]
            if loads["num_running_reqs"] == count:
                return


async def test_a_stream_without_end_is_cut_at_the_bound(model: Path) -> None:
    async with worker(model, "--drain-seconds", "0.2") as (process, url), aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/completions", json={**LONG, "max_tokens": 8000}) as response:
            await response.content.readline()
            process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_taken_port_is_one_line_and_exit_code_one(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await start_program("--model", str(model), "--port", str(taken.getsockname()[1]))
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out) == (1, b"")
    assert len(err.splitlines()) == 1
    assert b"cannot listen on 127.0.0.1:" in err


async def test_a_worker_that_speculates_gives_the_same_answer_and_counts_its_drafts(
    model: Path, serving: Serve
) -> None:
    body = {"prompt": "one two one two one two", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    async with serving() as plain:
        wanted = (await plain.post("/v1/completions", body))[1]["choices"]
    arguments = ("--speculative-method", "ngram", "--speculative-num-tokens", "2")
    async with worker(model, *arguments) as (_, url), aiohttp.ClientSession() as session:
        assert json.loads(await ask(session, url, body))["choices"] == wanted
        async with session.get(f"{url}/metrics") as response:
            metrics = await response.text()
    drafts = re.search(r"^vllm:spec_decode_num_draft_tokens_total{.*} (\S+)$", metrics, re.MULTILINE)
    assert drafts is not None
    assert float(drafts[1]) > 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--page-size", "0"], 2),
        ([], 1),
        (["--speculative-method", "medusa"], 2),
        (["--speculative-exit-layer", "1"], 2),
    ],
)
def test_a_worker_that_cannot_start_ends_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    try:
        found: object = main(["--model", str(tmp_path), "--port", "0", *arguments])
    except SystemExit as end:
        found = end.code
    out, err = capsys.readouterr()
    assert (code, "") == (found, out)
    assert (
        "block_size" if "--page-size" in arguments else "speculative" if arguments else "config.json"
    ) in err
