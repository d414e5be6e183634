"""The gain and the price of hedging, with workers that stall at times: `python -m tests.benchmarks.hedging`.

    one of four workers -------XXXXXXX---------------------XXXXXXX-----   sends nothing for a second, then goes on
                               another one each time, every EVERY_SECONDS

The workers are scripted, so that a first token takes 50 ms without a stall. The same calls are made with hedging
off and on. `computed twice` is the price: the share of requests that a second worker computed as well. Stalls of
three seconds and more are found without hedging, see gateway/fleet/stalls.py.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import uvloop
from rich.console import Console

from tests.benchmarks.report import new_table
from tests.fakes.scripted_worker import Script, ScriptedWorker
from tests.stage.processes import GatewayProcess
from tests.stage.valkey import ValkeyServer

WORKERS = 4
SESSIONS = 6
FIRST_TOKEN_SECONDS = 0.05
PAUSE_SECONDS = 0.05
STALL_SECONDS = 1.0
EVERY_SECONDS = 5.0
LEARNING_SECONDS = 5.0
"""Time in which the gateway learns how fast the workers are; its requests do not count."""

VARIANTS: Mapping[str, Mapping[str, Any] | None] = {
    "off": None,
    "on": {},
    "on, after 250 ms": {"after_ms": 250},
}


async def measure(hedging: Mapping[str, Any] | None, seconds: float, *, stalls: bool) -> Sequence[str]:
    """Return the figures of one run: requests, share computed twice, quantiles of the TTFT in ms."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        valkey = ValkeyServer(directory)
        stack.callback(valkey.kill)
        await asyncio.to_thread(valkey.start)
        script = Script(first_after=FIRST_TOKEN_SECONDS, tokens=4)
        workers = [await stack.enter_async_context(ScriptedWorker(script=script)) for _ in range(WORKERS)]
        tree: dict[str, Any] = {
            "redis": {"url": valkey.url},
            "database": {"url": "none"},
            "deployment_secret": "a secret of the benchmarks",
            "workers": [
                {"id": f"w{number}", "kind": "sglang", "url": worker.url}
                for number, worker in enumerate(workers)
            ],
            "requests": {"hedging": hedging},
        }
        gateway = GatewayProcess("gateway", directory, tree)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await gateway.all_up(http)
        numbers = itertools.count()
        await _load(http, gateway, LEARNING_SECONDS, numbers)
        seen = sum(len(worker.seen) for worker in workers)
        stalling = asyncio.create_task(_stall(workers)) if stalls else None
        ttft = sorted(await _load(http, gateway, seconds, numbers))
        if stalling is not None:
            stalling.cancel()
        twice = (sum(len(worker.seen) for worker in workers) - seen) / len(ttft) - 1
        quantiles = [f"{1000 * ttft[int(share * (len(ttft) - 1))]:,.0f}" for share in (0.5, 0.9, 0.99, 0.999)]
        return [f"{len(ttft):,}", f"{twice:.1%}", *quantiles]


async def _load(
    http: aiohttp.ClientSession, gateway: GatewayProcess, seconds: float, numbers: "itertools.count[int]"
) -> list[float]:
    """Send short prompts for so long, and return the times to the first byte in seconds."""
    taken, until = list[float](), time.monotonic() + seconds

    async def session() -> None:
        while time.monotonic() < until:
            prompt = f"{next(numbers)} is a short prompt"
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]}
            started = time.perf_counter()
            async with http.post(f"http://127.0.0.1:{gateway.port}/v1/chat/completions", json=body) as answer:
                await answer.content.readany()
                taken.append(time.perf_counter() - started)
                await answer.read()
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*(session() for _ in range(SESSIONS)))
    return taken


async def _stall(workers: Sequence[ScriptedWorker]) -> None:
    """Freeze one worker after the other."""
    chance = Random(7)
    while True:
        await asyncio.sleep(EVERY_SECONDS - STALL_SECONDS)
        worker = chance.choice(workers)
        worker.frozen = asyncio.Event()
        await asyncio.sleep(STALL_SECONDS)
        worker.frozen.set()
        worker.frozen = None


async def main(seconds: float) -> None:
    """Measure all variants, and print a table."""
    figures = ("requests", "computed twice", "TTFT p50 ms", "p90", "p99", "p99.9")
    drawn = new_table("Hedging of short prompts", ("stalls", "hedging"), figures)
    for stalls, (name, hedging) in itertools.product((False, True), VARIANTS.items()):
        drawn.add_row(
            "1 s every 5 s" if stalls else "none", name, *await measure(hedging, seconds, stalls=stalls)
        )
    Console(width=120).print(drawn)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the six runs")
    uvloop.run(main(parser.parse_args().seconds))
