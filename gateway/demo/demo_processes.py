"""The processes of the demo, which are workers and one gateway at a time, with their files, keys and ports."""

import asyncio
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import yaml

from gateway.process.children import Child, ChildFailed
from gateway.process.secrets import deployment_secret
from gateway.settings.tree import Settings
from gateway.tenants.keys import NewKey, new_key, pepper

TINY_MODEL = Path(__file__).parent / "tiny-llama"
"""The model of the demo: a Llama of 2.8 million weights that was trained on `topics.yaml` (`make demo-model`)."""
PAGE_SIZE = 16
TENANTS = ("acme", "globex")
KV_TOKENS = 48_000
WORKER_SECONDS_MAX = 120.0
GATEWAY_SECONDS_MAX = 30.0

WORKER_READY = re.compile(r"worker ready at (\S+)")
GATEWAY_READY = re.compile(r"radixgate ready at (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLocation:
    """The directory and the ports of the demo."""

    directory: Path
    port: int
    admin_port: int
    model: Path | None = None
    """The directory of a real model; None: the tiny one that is part of the package."""

    @property
    def checkpoint(self) -> Path:
        """The directory of the model."""
        return self.model if self.model is not None else TINY_MODEL

    @property
    def model_name(self) -> str:
        """The name of the model in requests."""
        return self.checkpoint.name

    @property
    def settings_file(self) -> Path:
        """The settings file of the gateway."""
        return self.directory / "gateway.yaml"


class DemoProcesses:
    """The processes of the demo; `close` ends all of them."""

    def __init__(self, location: DemoLocation, workers: int) -> None:
        self.location = location
        self.keys: dict[str, NewKey] = {}
        self._workers = [self._worker(number) for number in range(workers)]
        self._gateway: Child | None = None

    @property
    def worker_names(self) -> Sequence[str]:
        """The ids of all workers in the gateway's settings."""
        return [worker.name for worker in self._workers]

    @property
    def url(self) -> str:
        """The address of the gateway for tenants."""
        assert self._gateway is not None
        assert self._gateway.url is not None
        return self._gateway.url

    @property
    def admin_url(self) -> str:
        """The address of the gateway for operators."""
        return f"http://127.0.0.1:{self.location.admin_port}"

    def children(self) -> Sequence[Child]:
        """Return all processes."""
        return [*self._workers, self._gateway] if self._gateway is not None else self._workers

    async def start_workers(self) -> None:
        """Start all workers. Raises ChildFailed."""
        self.location.directory.mkdir(parents=True, exist_ok=True)
        await asyncio.gather(*(worker.start(WORKER_SECONDS_MAX) for worker in self._workers))

    async def start_gateway(self, policy: str) -> None:
        """Replace the running gateway by one with this policy, and wait until all workers are up."""
        if self._gateway is not None:
            await self._gateway.stop()
        self._write_settings()
        self._gateway = Child(
            "gateway",
            lambda _: [
                *(sys.executable, "-P", "-m", "gateway", "serve"),
                *("--config", str(self.location.settings_file)),
                *("--set", f"routing.policy={policy}"),
            ],
            GATEWAY_READY,
            self.location.directory / "gateway.log",
        )
        await self._gateway.start(GATEWAY_SECONDS_MAX)
        await self._wait_until_workers_are_up()

    async def flush_workers(self) -> None:
        """Warm each worker up with one request, then empty its cache."""
        async with aiohttp.ClientSession() as http:
            for worker in self._workers:
                body = {"model": self.location.model_name, "prompt": "warm up " * 64, "max_tokens": 8}
                async with http.post(f"{worker.url}/v1/completions", json=body) as answer:
                    await answer.read()
                async with http.post(f"{worker.url}/flush_cache") as answer:
                    if answer.status != 200:
                        raise ChildFailed(f"{worker.name} did not flush its cache (status {answer.status})")

    async def close(self) -> None:
        """Stop all processes."""
        await asyncio.gather(*(child.stop() for child in self.children()))

    def _worker(self, number: int) -> Child:
        def command(url: str | None) -> Sequence[str]:
            port = urlsplit(url).port if url is not None else 0
            options = {
                "model": self.location.checkpoint,
                "served-model-name": self.location.model_name,
                "port": port,
                "page-size": PAGE_SIZE,
                "kv-tokens": KV_TOKENS,
                "threads": 1,
            }
            given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
            return [sys.executable, "-P", "-m", "gateway", "worker", *given]

        # One thread for each worker: three workers, a gateway and a client share the machine.
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        name = f"worker-{number}"
        return Child(name, command, WORKER_READY, self.location.directory / f"{name}.log", environment)

    def _write_settings(self) -> None:
        directory = str(self.location.directory)
        secret = deployment_secret(Settings(state_directory=directory))
        if not self.keys:
            self.keys = {tenant: new_key(pepper(secret)) for tenant in TENANTS}
        limits = [{"requests": 6000, "per": "minute"}, {"total_tokens": 10_000_000, "per": "minute"}]
        settings = {
            "listen": {"port": self.location.port},
            "admin": {"port": self.location.admin_port},
            "state_directory": directory,
            "models": [
                {
                    "name": self.location.model_name,
                    "tokenizer": str(self.location.checkpoint),
                    "block_size": PAGE_SIZE,
                }
            ],
            "workers": [{"id": w.name, "kind": "embedded", "url": w.url} for w in self._workers],
            "plans": [{"name": "demo", "limits": limits, "concurrency": 64}],
            "tenants": [
                {"id": tenant, "plan": "demo", "keys": [{"id": key.id, "hash": key.hash}]}
                for tenant, key in self.keys.items()
            ],
            "drain": {"notice_seconds": 0, "seconds": 2},
        }
        self.location.settings_file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")

    async def _wait_until_workers_are_up(self) -> None:
        async with asyncio.timeout(GATEWAY_SECONDS_MAX), aiohttp.ClientSession() as http:
            while True:
                async with http.get(f"{self.admin_url}/health/ready") as answer:
                    state = await answer.json()
                if all(health == "up" for health in state["workers"].values()):
                    return
                await asyncio.sleep(0.05)


def free_port(wanted: int) -> int:
    """Return the wanted port if it is free, else any free port. Raises ChildFailed if there is none."""
    for port in (wanted, 0):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(trial.getsockname()[1])
    raise ChildFailed("there is no free port")
