"""`radixgate worker --engine sglang` as a process, with a scripted engine: registered, and known to a gateway."""

import asyncio
import json
import signal
import sys

import pytest

from tests.fakes import scripted_engine
from tests.stage.ports import free_port

DISCOVERY = {"discovery": '[{"kind": "redis"}]'}


@pytest.fixture
def port():
    return free_port()


async def launched(running, tmp_path, port, *more):
    settings = running.here.gateway.settings
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "worker", "--engine", "sglang", "--model", "m"),
        *("--python", str(scripted_engine.make(tmp_path)), "--port", str(port)),
        *("--register", settings.redis.url, "--register-prefix", settings.redis.prefix),
        *("--register-id", "launched"),
        *("--drain-seconds", "5", *more, "--", "--tp", "2"),
        stdout=asyncio.subprocess.PIPE,
    )


async def test_a_launched_worker_joins_and_leaves_every_gateway(gateway, tmp_path, port):
    async with gateway(**DISCOVERY) as running:
        process = await launched(running, tmp_path, port)
        try:
            said = await asyncio.wait_for(process.stdout.readline(), 60)
            assert said.decode() == f"worker ready at http://127.0.0.1:{port}\n"
            fleet = running.here.gateway.fleet
            await running.until(lambda: "launched" in fleet, seconds=60)
            (worker,) = fleet
            assert (worker.kind, worker.role) == ("sglang", "both")
            await running.until(lambda: worker.health.state == "up", seconds=60)
            assert json.loads((tmp_path / "argv.json").read_text())[-2:] == ["--tp", "2"]
            # While it has something to do it is let finish, and gets nothing new.
            (tmp_path / "script").write_text("running 1")
            process.send_signal(signal.SIGTERM)
            await running.until(lambda: "launched" not in fleet, seconds=60)
            assert process.returncode is None
            (tmp_path / "script").write_text("running 0")
            assert await asyncio.wait_for(process.wait(), 60) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_launched_engine_that_dies_leaves_until_it_is_back(gateway, tmp_path, port):
    async with gateway(**DISCOVERY) as running:
        process = await launched(running, tmp_path, port)
        try:
            fleet = running.here.gateway.fleet
            await running.until(lambda: "launched" in fleet, seconds=60)
            (tmp_path / "script").write_text("die silent")
            await running.until(lambda: "launched" not in fleet, seconds=60)
            (tmp_path / "script").unlink()
            await running.until(lambda: "launched" in fleet, seconds=60)
            assert len((tmp_path / "starts").read_text().split()) == 2
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 60)
