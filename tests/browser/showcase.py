"""A real run to look at: embedded workers, a gateway with a database and prices, tenants with chat sessions."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import yaml

from gateway.bench.ideal_cache import IdealCache
from gateway.demo.demo_processes import GATEWAY_READY, TINY_MODEL, WORKER_READY
from gateway.demo.traffic import ChatSession, TrafficScale, make_sessions, run_sessions
from gateway.process.children import Child
from tests.stage.ports import free_port

MODEL = TINY_MODEL.name
PAGE_SIZE = 16
TENANTS = ("acme", "globex", "initech")
SCALE = TrafficScale(sessions=6, turns=4, answer_tokens=16)
TOKEN = "5f0c1d3e9a7b4c2d8e6f1a0b3c5d7e9f"
START_SECONDS_MAX = 180.0


class Showcase:
    """The running processes, and the keys of the tenants."""

    def __init__(self, url: str, admin: str, checkpoint: Path, keys: dict[str, str]) -> None:
        self.url = url
        self.admin = admin
        self.keys = keys
        self._checkpoint = checkpoint
        self._round = 0

    async def chats(self) -> None:
        """Run new chat sessions of all tenants."""
        self._round += 1
        scale = TrafficScale(
            sessions=SCALE.sessions,
            turns=SCALE.turns,
            answer_tokens=SCALE.answer_tokens,
            seed=self._round % 3,
        )
        sessions: list[ChatSession] = make_sessions(TENANTS, scale)
        await run_sessions(
            sessions,
            url=self.url,
            model=MODEL,
            keys=self.keys,
            scale=scale,
            ideal_cache=IdealCache(self._checkpoint, PAGE_SIZE),
            done=lambda result: None,
        )


@asynccontextmanager
async def showcase(directory: Path, *, workers: int = 3) -> AsyncIterator[Showcase]:
    """Start all processes; they end with the context."""
    checkpoint = TINY_MODEL
    command = [sys.executable, "-P", "-m", "gateway"]
    async with AsyncExitStack() as stack:
        urls = {}
        for number in range(workers):
            worker = Child(
                f"worker-{number}",
                lambda _: [
                    *(*command, "worker", "--model", str(checkpoint), "--served-model-name", MODEL),
                    *("--page-size", str(PAGE_SIZE), "--kv-tokens", "16000", "--threads", "1", "--port", "0"),
                ],
                WORKER_READY,
                directory / f"worker-{number}.log",
                {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            )
            stack.push_async_callback(worker.stop)
            urls[worker.name] = await worker.start(START_SECONDS_MAX)
        file, port = directory / "gateway.yaml", free_port()
        file.write_text(yaml.safe_dump(_settings(directory, checkpoint, urls, port), sort_keys=False))
        gateway = Child(
            "gateway",
            lambda _: [*command, "serve", "--config", str(file)],
            GATEWAY_READY,
            directory / "gateway.log",
        )
        stack.push_async_callback(gateway.stop)
        url = await gateway.start(START_SECONDS_MAX)
        http, admin = await stack.enter_async_context(aiohttp.ClientSession()), f"http://127.0.0.1:{port}"
        yield Showcase(url, admin, checkpoint, await _tenants(http, admin))


async def _tenants(http: aiohttp.ClientSession, admin: str) -> dict[str, str]:
    """Create the tenants, and return a key of each."""
    headers, keys = {"Authorization": f"Bearer {TOKEN}"}, {}

    async def send(method: str, path: str, body: dict[str, object]) -> dict[str, str]:
        async with http.request(method, f"{admin}/admin/v1/{path}", json=body, headers=headers) as answer:
            made: dict[str, str] = await answer.json()
            assert answer.status < 300, made
            return made

    limits = [{"requests": 600, "per": "minute"}, {"total_tokens": 2_000_000, "per": "hour"}]
    for plan, weight in (("team", 1), ("enterprise", 3)):
        await send("PUT", f"plans/{plan}", {"limits": limits, "concurrency": 32, "weight": weight})
    for tenant, plan in zip(TENANTS, ("enterprise", "team", "team"), strict=True):
        await send("PUT", f"tenants/{tenant}", {"plan": plan, "organisation": tenant})
        keys[tenant] = (await send("POST", "keys", {"tenant": tenant}))["key"]
    await asyncio.sleep(3)  # Until the gateway has read them.
    return keys


def _settings(directory: Path, checkpoint: Path, urls: dict[str, str], port: int) -> dict[str, object]:
    return {
        "listen": {"port": 0},
        "admin": {"port": port, "token": TOKEN},
        "state_directory": str(directory),
        "database": {"url": f"sqlite:///{directory}/radixgate.db"},
        "models": [
            {
                "name": MODEL,
                "tokenizer": str(checkpoint),
                "block_size": PAGE_SIZE,
                "prices": {"input": 0.4, "cached_input": 0.04, "output": 1.2},
            }
        ],
        "workers": [{"id": name, "kind": "embedded", "url": url} for name, url in urls.items()],
        "routing": {"shadow": {"policy": "least_work", "share": 0.1}},
        "telemetry": {"requests": {"slow_seconds": 3.0}},
        "drain": {"notice_seconds": 0, "seconds": 2},
    }
