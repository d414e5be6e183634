"""Counts the Python calls that the gateway makes for one request: the same number on every machine.

The gateway runs under cProfile before the scripted workers, with 32 connections. A coroutine counts once for each
time that it is resumed.
"""

import asyncio
import pstats
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.subjects import Subject

ROOT = Path(__file__).parents[2]
ROOMS = ("gateway", "policies", "radix_cache", "workers")
CONNECTIONS = 32
WARM_UP = 200
SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class RoomCalls:
    """The calls of one room's functions per request, and of what they call outside of the project."""

    own: float
    outside: float
    microseconds: float
    """Of both, under the profiler: compare rooms, not machines."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one request."""

    all: float
    own: float
    modules: int
    functions: int
    rooms: Mapping[str, RoomCalls]


async def counted(one: Subject, directory: Path, requests: int, *, stream: bool) -> Calls:
    """Return what one request costs; the gateway was started as profiled_gateway with this directory."""
    url = f"http://{one.host}:{one.port}/v1/chat/completions"
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {one.key}"}) as http:
        await send(http, url, one.model, WARM_UP, stream=stream)
        (directory / "profile").touch()
        await asyncio.sleep(0.3)
        await send(http, url, one.model, requests, stream=stream)
        figures = directory / "figures"
        figures.unlink(missing_ok=True)
        (directory / "profile").unlink()
        async with asyncio.timeout(SECONDS_MAX):
            while not figures.exists() or not figures.stat().st_size:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
    return _calls(pstats.Stats(str(figures)).stats, requests)  # type: ignore[attr-defined]


async def send(
    http: aiohttp.ClientSession,
    url: str,
    model: str,
    count: int,
    *,
    stream: bool,
    connections: int = CONNECTIONS,
) -> None:
    """Send the same short chat request so often, over so many connections."""
    left = iter(range(count))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "hello " * 33}],
        "max_tokens": 64 if stream else 16,
        "stream": stream,
    }

    async def caller() -> None:
        for _ in left:
            async with http.post(url, json=body) as answer:
                await answer.read()
                assert answer.status == 200, answer.status

    await asyncio.gather(*(caller() for _ in range(connections)))


def _calls(stats: Mapping[Any, Any], requests: int) -> Calls:
    own, outside, seconds = Counter[str](), Counter[str](), Counter[str]()
    modules, functions, total = set[str](), 0, 0
    for function, (_, count, own_seconds, _, callers) in stats.items():
        total += count
        room = _room(function[0])
        if room is not None:
            own[room] += count
            seconds[room] += own_seconds
            if 2 * count >= requests:
                modules.add(function[0])
                functions += 1
            continue
        for caller, (_, calls, its_seconds, _) in callers.items():
            at = _room(caller[0]) or _library(caller[0])
            outside[at] += calls
            seconds[at] += its_seconds
    rooms = {
        room: RoomCalls(own[room] / requests, outside[room] / requests, 1e6 * seconds[room] / requests)
        for room in sorted({*own, *outside})
    }
    return Calls(total / requests, sum(own.values()) / requests, len(modules), functions, rooms)


def _room(file: str) -> str | None:
    """Return the room of one of the project's own files."""
    path = Path(file)
    if "site-packages" in path.parts or not path.is_relative_to(ROOT):
        return None
    parts = path.relative_to(ROOT).parts
    if parts[0] not in ROOMS:
        return None
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def _library(file: str) -> str:
    """Return a name for a caller outside of the project."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return f"({parts[parts.index('site-packages') + 1].removesuffix('.py')})"
    return "(python)"
