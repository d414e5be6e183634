"""Gateways and workers as processes: started at an address that they keep, signalled and observed."""

import asyncio
import os
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

from gateway.process.children import Child
from tests.stage.ports import free_ports

READY = re.compile(r"ready at (\S+)")
START_SECONDS_MAX = 120.0
SMALL = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Process:
    """A running command, and the file with its output."""

    def __init__(
        self, name: str, directory: Path, command: Sequence[str], *, child: type[Child] = Child
    ) -> None:
        """Prepare the command; `child` is Child for a program, ForkedChild for a fork."""
        self.name = name
        self.log = directory / f"{name}.log"
        self._child = child(name, lambda _: command, READY, self.log, SMALL)

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._child.pid is not None
        return self._child.pid

    @property
    def url(self) -> str:
        """The URL that the command printed when it was ready."""
        assert self._child.url is not None
        return self._child.url

    async def start(self) -> None:
        """Start the command and wait until it says that it is ready. Raises ChildFailed."""
        await self._child.start(START_SECONDS_MAX)

    def signal(self, number: int) -> None:
        """Send a signal to the process. Raises ProcessLookupError."""
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """Wait for the end of the process and return its exit code."""
        assert self._child._process is not None
        return await self._child._process.wait()

    async def stop(self) -> None:
        """Stop the process, also if SIGSTOP has stalled it."""
        if self._child.pid is not None:
            with suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
        await self._child.stop()


class GatewayProcess(Process):
    """`radixgate serve` with these settings, on ports that are chosen here and stay the same."""

    def __init__(
        self,
        name: str,
        directory: Path,
        settings: Mapping[str, Any],
        program: Sequence[str] = ("gateway",),
        *,
        child: type[Child] = Child,
    ) -> None:
        """Write the settings file.

        `program` is the module to run and its arguments before `serve`; `child` is Child for a program,
        ForkedChild for a fork.
        """
        port = free_ports(2)[0]
        own = {
            "listen": {**settings.get("listen", {}), "port": port},
            "admin": {"port": port + 1},
            "state_directory": str(directory / name),
        }
        file = directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump({**settings, **own}, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-m", *program, "serve", "--config", str(file)]
        super().__init__(name, directory, command, child=child)
        self.settings_file = file
        self.host, self.port = "127.0.0.1", port
        self.admin = f"http://127.0.0.1:{port + 1}"

    async def readiness(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        """Return the body of the readiness probe. Raises aiohttp.ClientError, TimeoutError."""
        async with http.get(f"{self.admin}/health/ready") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def metrics(self, http: aiohttp.ClientSession) -> dict[str, float]:
        """Return the sum over all labels of each metric, by name. Raises aiohttp.ClientError, TimeoutError."""
        sums: dict[str, float] = {}
        for name, _, value in await self._scraped(http):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    async def by_worker(self, metric: str, http: aiohttp.ClientSession) -> dict[str, float]:
        """Return one metric of each worker. Raises aiohttp.ClientError, TimeoutError."""
        lines = [(labels, value) for name, labels, value in await self._scraped(http) if name == metric]
        return {labels.partition('worker="')[2].partition('"')[0]: float(value) for labels, value in lines}

    async def _scraped(self, http: aiohttp.ClientSession) -> list[tuple[str, str, str]]:
        """Return name, labels and value of every line of the metrics page."""
        async with http.get(f"{self.admin}/metrics") as answer:
            return re.findall(r"^radixgate_(\w+)({.*})? (\S+)$", await answer.text(), re.M)

    async def all_up(self, http: aiohttp.ClientSession) -> None:
        """Wait until the gateway is ready and every worker is up. Raises TimeoutError."""
        async with asyncio.timeout(START_SECONDS_MAX):
            while True:
                state = await self.readiness(http)
                if state["ready"] and set(state["workers"].values()) == {"up"}:
                    return
                await asyncio.sleep(0.05)


class EmbeddedProcess(Process):
    """`radixgate worker` on a tiny checkpoint, on ports that stay the same, also those of its KV events."""

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
        self.port = free_ports(3)[0]
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
        """The ports of the KV events and of their replay."""
        return self.events_port, self.events_port + 1


def fast_workers(directory: Path, models: Sequence[str]) -> Process:
    """Return a process with two workers that need almost no CPU; its URL names both."""
    return Process("fast-workers", directory, [sys.executable, "-m", "tests.benchmarks.fast_worker", *models])


def address(url: str) -> tuple[str, int]:
    """Return host and port of the URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def resident_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, without pages of files (code, libraries), which vary. Linux."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.M)
    assert kilobytes is not None
    return int(kilobytes[1]) * 1024


def descriptors(pid: int) -> int:
    """Return how many files and sockets a process has open. Linux."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def gateway_processes(supervisor: int) -> dict[int, int]:
    """Return the process ids of the gateways of a supervising process, by their number."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            status, line = Path(f"/proc/{pid}/stat").read_text(), Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        parent, number = int(status.rpartition(")")[2].split()[1]), re.search(r"--process\x00(\d+)/", line)
        if parent == supervisor and number is not None:
            found[int(number[1])] = pid
    return found


def has_ended(pid: int) -> bool:
    """Whether a process has ended and closed its sockets; before that, connections to it may be reset.

    A killed process loses its command line first, then its files. At its end only its first thread is left, as a
    zombie until the parent has reaped it.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        return True
