"""A worker over a tiny checkpoint, served as in production: own runner, real sockets."""

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from workers.engine_server.engine_worker import EngineWorker
from workers.engine_server.options import WorkerOptions
from workers.engine_server.serving import serve

BLOCK = 16


@dataclass
class Client:
    """One HTTP client of one worker."""

    session: aiohttp.ClientSession
    url: str
    worker: EngineWorker

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.json()

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of all frames; "[DONE]" stays text."""
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            frames = (await response.read()).decode().split("\n\n")
        assert frames.pop() == ""
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
        data = [frame.removeprefix("data: ") for frame in frames]
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    async def loads(self) -> dict[str, Any]:
        _, body = await self.get("/v1/loads")
        return body["loads"][0]

    async def until(self, **wanted: int) -> dict[str, Any]:
        """The loads, as soon as they are as wanted."""
        async with asyncio.timeout(60):
            while True:
                now = await self.loads()
                if all(now[name] == value for name, value in wanted.items()):
                    return now
                await asyncio.sleep(0.005)

    async def until_idle(self) -> None:
        now = await self.until(num_running_reqs=0, num_waiting_reqs=0)
        assert now["num_used_tokens"] == 0


Serve = Callable[..., AbstractAsyncContextManager[Client]]
PauseAfter = Callable[[Client, int], Callable[[], None]]


@pytest.fixture
def pause_after(monkeypatch: pytest.MonkeyPatch) -> PauseAfter:
    """A function that pauses the engine of a worker after so many steps, and returns one that lets it go on.

    A paused engine takes requests and aborts, but computes nothing.
    """

    def pause(client: Client, steps: int) -> Callable[[], None]:
        engine = client.worker.engine._engine
        numbers, real, resumed = itertools.count(1), engine.step, threading.Event()

        def step() -> Any:
            if next(numbers) > steps and not resumed.wait(0.001):
                return []
            return real()

        monkeypatch.setattr(engine, "step", step)
        return resumed.set

    return pause


@pytest.fixture
def serving(model: Path) -> Serve:
    """A worker with the options given, and a client of it."""

    @asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[Client]:
        settings = {
            "model": model,
            "port": 0,
            "threads": 1,
            "page_size": BLOCK,
            "kv_tokens": 16384,
            **options,
        }
        async with serve(WorkerOptions(**settings)) as worker, aiohttp.ClientSession() as session:
            yield Client(session=session, url=worker.url, worker=worker.worker)

    return start


@pytest.fixture
async def client(serving: Serve) -> AsyncIterator[Client]:
    async with serving() as client:
        yield client
