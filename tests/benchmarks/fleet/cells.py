"""Counts the costs of a request in one cell, alone and beside other cells under the same load.

Every cell has a Valkey of its own; all cells share one more, for quotas, leases and the loads of their workers.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis.asyncio as redis

from gateway.quotas.limit import CONCURRENCY
from tests.benchmarks.fleet.counts import IDLE_SECONDS, LIMITS, QUIET_SECONDS, WARM_UP_REQUESTS, figures
from tests.benchmarks.fleet.load import BLOCK_SIZE, FleetLoad, model_names, send
from tests.stage.cells import CellFleet, cell_fleet
from tests.stage.processes import fast_workers

NAMES = ("east", "west", "north", "south")
FIRST = NAMES[0]
TENANTS = 16
COUNTED = ("commands", "bytes_in", "bytes_out", "changes")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCosts:
    """What one request costs one Redis on average, less what gateways cost it without requests."""

    commands: float
    """Those inside of scripts included."""
    bytes_in: float
    """Into Redis."""
    bytes_out: float
    changes: float
    """Changes of the index, each of which is sent to every gateway of the cell."""
    idle_commands: float
    """A second, of all gateways together."""


async def count_cells(
    cells: int, load: FleetLoad, directory: Path, *, idle_seconds: float = IDLE_SECONDS
) -> tuple[CellCosts, CellCosts]:
    """Return what a request costs the Redis of the first cell, and the one that all cells share.

    `load` is that of each cell, from tenants of its own. `idle_seconds`: how long cells at rest are counted.
    Raises ChildFailed.
    """
    async with AsyncExitStack() as stack:
        models = model_names(load)
        worker = fast_workers(directory, models)
        stack.push_async_callback(worker.stop)
        await worker.start()
        settings: Mapping[str, Any] = {
            "models": [{"name": name, "tokenizer": "text", "block_size": BLOCK_SIZE} for name in models],
            "queueing": {"release_window_tokens": load.window_tokens},
            "plans": [{"name": "plan", "limits": LIMITS, CONCURRENCY: 100_000}],
        }
        fleet = await stack.enter_async_context(
            cell_fleet(
                directory,
                worker.url.split(","),
                cells=dict.fromkeys(NAMES[:cells], load.gateways),
                tenants=TENANTS,
                model=models[0],
                **settings,
            )
        )
        urls = (fleet.valkeys[FIRST].url, fleet.shared.url)
        clients = [await stack.enter_async_context(redis.from_url(url)) for url in urls]
        return await _count(fleet, load, clients, idle_seconds)


async def _count(
    fleet: CellFleet, load: FleetLoad, clients: Sequence[Any], idle_seconds: float
) -> tuple[CellCosts, CellCosts]:
    await _send_to_all(fleet, replace(load, requests=WARM_UP_REQUESTS * load.gateways), "warm")
    await asyncio.sleep(QUIET_SECONDS)
    before = [await figures([client], ()) for client in clients]
    await asyncio.sleep(idle_seconds)
    rested = [await figures([client], ()) for client in clients]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await _send_to_all(fleet, load, "new")
    await asyncio.sleep(QUIET_SECONDS)
    seconds = loop.time() - began
    after = [await figures([client], ()) for client in clients]
    own, shared = (
        _costs(*three, idle_seconds, seconds, requests)
        for three, requests in zip(
            zip(before, rested, after, strict=True),
            (load.requests, load.requests * len(fleet.gateways)),
            strict=True,
        )
    )
    return own, shared


def _costs(
    before: Mapping[str, float],
    rested: Mapping[str, float],
    after: Mapping[str, float],
    idle_seconds: float,
    seconds: float,
    requests: int,
) -> CellCosts:
    idle = {name: (rested[name] - before[name]) / idle_seconds for name in COUNTED}
    spent = {name: (after[name] - rested[name] - idle[name] * seconds) / requests for name in COUNTED}
    return CellCosts(**spent, idle_commands=idle["commands"])


async def _send_to_all(fleet: CellFleet, load: FleetLoad, word: str) -> None:
    """Send the load to every cell at the same time, from tenants of each."""
    async with asyncio.TaskGroup() as group:
        for cell, gateways in fleet.gateways.items():
            keys = [fleet.keys[tenant].text for tenant in fleet.tenants_of(cell)]
            urls = [gateway.url for gateway in gateways]
            group.create_task(send(urls, keys[:1], load, f"{cell}-{word}", load.requests))
