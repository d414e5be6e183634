"""A fleet of cells: gateways as processes, a private Valkey for each cell, and one that all cells share."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gateway.tenants.keys import NewKey, new_key, pepper
from policies.cell_ownership import owner_of
from tests.stage.forks import ForkedChild
from tests.stage.processes import GatewayProcess
from tests.stage.valkey import ValkeyServer

SECRET = "a secret of the tests"
LEASE_SECONDS = 60.0
"""Longer than a busy machine stops a gateway: none is to be taken for dead but by tests of that."""
SECONDS_MAX = 90.0


class CellFleet:
    """Running gateways by the name of their cell, and a key for each tenant."""

    def __init__(
        self,
        gateways: Mapping[str, Sequence[GatewayProcess]],
        valkeys: Mapping[str, ValkeyServer],
        shared: ValkeyServer,
        keys: Mapping[str, NewKey],
        http: aiohttp.ClientSession,
    ) -> None:
        self.gateways, self.valkeys, self.shared, self.keys, self.http = gateways, valkeys, shared, keys, http

    def tenants_of(self, cell: str) -> list[str]:
        """Return the tenants that belong to a cell while all cells are alive."""
        return [tenant for tenant in self.keys if owner_of(tenant, self.gateways) == cell]

    def headers(self, tenant: str) -> dict[str, str]:
        """Return the headers that authenticate a tenant."""
        return {"Authorization": f"Bearer {self.keys[tenant].text}"}

    def chat(self, gateway: GatewayProcess, tenant: str, text: str = "hello", **more: Any) -> Any:
        """Send a chat completion: `async with fleet.chat(gateway, tenant) as answer`."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}
        return self.http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=self.headers(tenant))


@asynccontextmanager
async def cell_fleet(
    directory: Path,
    workers: Sequence[str],
    *,
    cells: Mapping[str, int],
    tenants: int = 8,
    model: str = "m",
    lease_seconds: float = LEASE_SECONDS,
    **settings: Any,
) -> AsyncIterator[CellFleet]:
    """Run so many gateways in each cell, by its name, until every gateway knows all cells and workers.

    `workers`: their URLs. `model`: the model that they serve. `lease_seconds`: how long a gateway counts as alive
    after its last sign of life.
    """
    keys = {f"tenant-{at}": new_key(pepper(SECRET.encode())) for at in range(tenants)}
    async with AsyncExitStack() as stack:
        valkeys = {name: _valkey(stack) for name in ("shared", *cells)}
        tree: dict[str, Any] = {
            "database": {"url": "none"},
            "deployment_secret": SECRET,
            "workers": [
                {"id": f"w{at}", "kind": "sglang", "url": url, "models": [model]}
                for at, url in enumerate(workers)
            ],
            "plans": [{"name": "plan"}],
            "tenants": [
                {"id": tenant, "plan": "plan", "keys": [{"id": key.id, "hash": key.hash}]}
                for tenant, key in keys.items()
            ],
            "drain": {"notice_seconds": 1, "seconds": 1},
            **settings,
        }
        gateways = {
            cell: [
                _gateway(f"{cell}-{at}", directory, tree, cell, valkeys, lease_seconds) for at in range(count)
            ]
            for cell, count in cells.items()
        }
        processes = [process for group in gateways.values() for process in group]
        for process in processes:
            stack.push_async_callback(process.stop)
        await asyncio.gather(*(process.start() for process in processes))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS_MAX))
        )
        for process in processes:
            await process.all_up(http)
        shared = valkeys.pop("shared")
        fleet = CellFleet(gateways, valkeys, shared, keys, http)
        await _all_known(fleet, processes)
        yield fleet


async def _all_known(fleet: CellFleet, processes: Sequence[GatewayProcess]) -> None:
    """Wait until each gateway knows as many cells as there are."""
    async with asyncio.timeout(SECONDS_MAX):
        for process in processes:
            while (await process.metrics(fleet.http))["cells_alive"] != len(fleet.gateways):
                await asyncio.sleep(0.05)


def _valkey(stack: AsyncExitStack) -> ValkeyServer:
    server = ValkeyServer(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radixgate-test-"))))
    server.start()
    stack.callback(server.kill)
    return server


def _gateway(
    name: str,
    directory: Path,
    tree: Mapping[str, Any],
    cell: str,
    valkeys: Mapping[str, ValkeyServer],
    lease_seconds: float,
) -> GatewayProcess:
    redis = {"url": valkeys[cell].url, "timeout_ms": 2000}
    process = GatewayProcess(name, directory, {**tree, "redis": redis}, child=ForkedChild)
    settings = yaml.safe_load(process.settings_file.read_text(encoding="utf-8"))
    settings["cells"] = {
        "name": cell,
        "url": f"http://{process.host}:{process.port}",
        "redis_url": valkeys["shared"].url,
        "lease_seconds": lease_seconds,
    }
    process.settings_file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return process
