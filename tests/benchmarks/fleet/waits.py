"""TTFT of requests that wait: one queue of all gateways, beside a divided queue in a cluster and beside cells.

    python -m tests.benchmarks.fleet.waits [--requests N] [--rounds N] [--window TOKENS] [--layout NAME ...]

Two gateways stand before two scripted workers, each of which computes one prompt after the other for 80 ms, so that
25 requests/s fill both. The requests of a round, their moments and their tenants are the same in every layout. A
prompt has 256 tokens, so that a window of 3,200 tokens is a second of work.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.fleet.counts import started
from tests.benchmarks.fleet.load import BLOCK_SIZE, FleetLoad, Sent, model_names, send, wait_until_served
from tests.benchmarks.report import new_table, number
from tests.stage.cells import cell_fleet
from tests.stage.processes import fast_workers

PREFILL_MS = 80
TENANTS = 24
RATES = {"70 %": 17.5, "90 %": 22.5}
"""Requests per second, by the part of what the workers can do."""
WINDOW_TOKENS = 3200
LOAD = FleetLoad(
    gateways=2,
    requests_per_second=0,
    requests=0,
    new_blocks=4,
    prefill_ms=PREFILL_MS,
    tenants=TENANTS,
)
LAYOUTS: Mapping[str, int | FleetLoad] = {
    "one Redis, one queue": LOAD,
    "3 primaries, one queue": replace(LOAD, primaries=3),
    "3 primaries, tenants in 3 shards": replace(LOAD, primaries=3, tenant_shards=3),
    "3 primaries, tenants in 24 shards": replace(LOAD, primaries=3, tenant_shards=24),
    "one cell of two gateways": 1,
    "two cells of one gateway": 2,
}
"""A load, or a number of cells."""


async def main() -> None:
    """Measure all layouts, and print the table."""
    parser = argparse.ArgumentParser(prog="waits", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--window", type=int, default=WINDOW_TOKENS)
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="may be repeated; all by default")
    options = parser.parse_args()
    layouts = options.layout or list(LAYOUTS)
    console = Console(width=130)
    drawn = new_table(
        f"TTFT in ms, windows of {options.window} tokens",
        ("load", "layout"),
        ("mean", "of one queue", "p95", "of one queue"),
    )
    found: dict[tuple[str, str], list[float]] = {}
    for layout in layouts:
        console.print(f"{layout} ...", style="dim")
        with tempfile.TemporaryDirectory() as directory:
            measured = await _measure(
                LAYOUTS[layout], Path(directory), options.window, options.requests, options.rounds
            )
        found |= {(rate, layout): ttft_ms for rate, ttft_ms in measured.items()}
    for rate in RATES:
        one = found[rate, layouts[0]]
        for layout in layouts:
            row = []
            for figure in (_mean, _p95):
                value = figure(found[rate, layout])
                row += [number(value, 0), f"{value / figure(one):.2f} x"]
            drawn.add_row(rate, layout, *row)
    console.print(drawn)


async def _measure(
    how: int | FleetLoad, directory: Path, window_tokens: int, requests: int, rounds: int
) -> dict[str, list[float]]:
    """Return the TTFT of all requests, by rate."""
    async with AsyncExitStack() as stack:
        if isinstance(how, int):
            send_all = await _cells(stack, how, directory, window_tokens)
        else:
            send_all = await _one(stack, replace(how, window_tokens=window_tokens), directory)
        found: dict[str, list[float]] = {}
        await send_all(RATES["70 %"], "warm", 50)
        for rate, requests_per_second in RATES.items():
            for at in range(rounds):
                sent = await send_all(requests_per_second, f"round {at} at {rate}", requests)
                found.setdefault(rate, []).extend(sent.ttft_ms)
        return found


async def _one(stack: AsyncExitStack, load: FleetLoad, directory: Path) -> Callable[..., Any]:
    fleet = await stack.enter_async_context(started(load, directory))
    await wait_until_served(fleet.urls, fleet.keys[0], load)

    async def send_all(rate: float, word: str, count: int) -> Sent:
        return await send(fleet.urls, fleet.keys, replace(load, requests_per_second=rate), word, count)

    return send_all


async def _cells(
    stack: AsyncExitStack, cells: int, directory: Path, window_tokens: int
) -> Callable[..., Any]:
    models = model_names(LOAD)
    worker = fast_workers(directory, models)
    stack.push_async_callback(worker.stop)
    await worker.start()
    fleet = await stack.enter_async_context(
        cell_fleet(
            directory,
            worker.url.split(","),
            cells=dict.fromkeys(("east", "west")[:cells], 2 // cells),
            tenants=TENANTS,
            model=models[0],
            models=[{"name": name, "tokenizer": "text", "block_size": BLOCK_SIZE} for name in models],
            queueing={"release_window_tokens": window_tokens},
        )
    )
    owners = {tenant: cell for cell in fleet.gateways for tenant in fleet.tenants_of(cell)}
    keys, urls = [], []
    for at, (tenant, key) in enumerate(fleet.keys.items()):
        gateways = fleet.gateways[owners[tenant]]
        keys.append(key.text)
        urls.append(gateways[at % len(gateways)].url)
    load = replace(LOAD, gateways=len(urls))

    async def send_all(rate: float, word: str, count: int) -> Sent:
        return await send(urls, keys, replace(load, requests_per_second=rate), word, count)

    return send_all


def _mean(ttft_ms: list[float]) -> float:
    return sum(ttft_ms) / len(ttft_ms)


def _p95(ttft_ms: list[float]) -> float:
    return sorted(ttft_ms)[int(0.95 * len(ttft_ms))]


if __name__ == "__main__":
    asyncio.run(main())
