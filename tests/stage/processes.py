"""Gateways and workers as processes: started at an address that they keep, signalled, looked at."""

import asyncio
import os
import random
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml

from gateway.demo.demo_processes import free_port
from gateway.process.children import Child

READY = re.compile(r"ready at (\S+)")
START_SECONDS_MAX = 120.0
SMALL = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Process:
    """One command with its log. `log`: what it has to say."""

    def __init__(self, name: str, directory: Path, command: Sequence[str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._child = Child(name, lambda _: command, READY, self.log, SMALL)

    @property
    def pid(self) -> int:
        assert self._child.pid is not None
        return self._child.pid

    @property
    def url(self) -> str:
        assert self._child.url is not None
        return self._child.url

    async def start(self) -> None:
        """Until it says that it is ready. Raises ChildFailed."""
        await self._child.start(START_SECONDS_MAX)

    def signal(self, number: int) -> None:
        """Raises ProcessLookupError."""
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        assert self._child._process is not None
        return await self._child._process.wait()

    async def stop(self) -> None:
        """Also if it is stalled."""
        if self._child.pid is not None:
            with suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
        await self._child.stop()


class GatewayProcess(Process):
    """`radixgate serve` with these settings; the ports are chosen here and stay the same."""

    def __init__(
        self,
        name: str,
        directory: Path,
        settings: Mapping[str, Any],
        program: Sequence[str] = ("gateway",),
    ) -> None:
        """`program`: the module that is run, and what it wants to be told before `serve`."""
        port = steady_ports(2)
        own = {
            "listen": {"port": port},
            "admin": {"port": port + 1},
            "state_directory": str(directory / name),
        }
        file = directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump({**settings, **own}, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-m", *program, "serve", "--config", str(file)]
        super().__init__(name, directory, command)
        self.settings_file = file
        self.host, self.port = "127.0.0.1", port
        self.admin = f"http://127.0.0.1:{port + 1}"

    async def readiness(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """What it says of itself. Raises aiohttp.ClientError, TimeoutError."""
        async with http.get(f"{self.admin}/health/ready") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def metrics(self, http: aiohttp.ClientSession) -> dict[str, float]:
        """Sums over all labels, by name. Raises aiohttp.ClientError, TimeoutError."""
        sums: dict[str, float] = {}
        for name, _, value in await self._scraped(http):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    async def by_worker(self, metric: str, http: aiohttp.ClientSession) -> dict[str, float]:
        """One metric of each worker. Raises aiohttp.ClientError, TimeoutError."""
        lines = [(labels, value) for name, labels, value in await self._scraped(http) if name == metric]
        return {labels.partition('worker="')[2].partition('"')[0]: float(value) for labels, value in lines}

    async def _scraped(self, http: aiohttp.ClientSession) -> list[tuple[str, str, str]]:
        """(name, labels, value) of every line."""
        async with http.get(f"{self.admin}/metrics") as answer:
            return re.findall(r"^radixgate_(\w+)({.*})? (\S+)$", await answer.text(), re.M)

    async def all_up(self, http: aiohttp.ClientSession) -> None:
        """Until it is ready and every worker is up. Raises TimeoutError."""
        async with asyncio.timeout(START_SECONDS_MAX):
            while True:
                state = await self.readiness(http)
                if state["ready"] and set(state["workers"].values()) == {"up"}:
                    return
                await asyncio.sleep(0.05)


class EmbeddedProcess(Process):
    """`radixgate worker` on a tiny checkpoint. It comes back to the same ports, KV events included."""

    def __init__(
        self,
        name: str,
        directory: Path,
        checkpoint: Path,
        *,
        kv_tokens: int,
        host: str = "127.0.0.1",
        **more: Any,
    ) -> None:
        self.port = steady_ports(3)
        self.events_port = self.port + 1
        options: dict[str, Any] = {
            "model": checkpoint,
            "host": host,
            "port": self.port,
            "kv_events_port": self.events_port,
            "kv_tokens": kv_tokens,
            "threads": 1,
            **more,
        }
        given = [
            part
            for option, value in options.items()
            for part in (f"--{option.replace('_', '-')}", str(value))
        ]
        super().__init__(name, directory, [sys.executable, "-m", "gateway", "worker", *given])

    @property
    def event_ports(self) -> tuple[int, int]:
        """Of its KV events, and of their replay."""
        return self.events_port, self.events_port + 1


def fast_workers(directory: Path, models: Sequence[str]) -> Process:
    """Two workers in one process that cost next to nothing; its URL names both."""
    return Process("fast-workers", directory, [sys.executable, "-m", "tests.benchmarks.fast_worker", *models])


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def resident_bytes(pid: int) -> int:
    """Memory of a process that is its own: pages of files (code, libraries) come and go as they are used. Linux."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.M)
    assert kilobytes is not None
    return int(kilobytes[1]) * 1024


def descriptors(pid: int) -> int:
    """Files and sockets that a process has open. Linux."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def steady_ports(count: int) -> int:
    """The first of so many free ports in a row, that nobody gets by chance while their owner is away.

    Systems take the ports of callers from 32768 on (Linux) or above.
    """
    while True:
        first = random.randrange(15_000, 32_000)
        if all(free_port(first + at) == first + at for at in range(count)):
            return first
