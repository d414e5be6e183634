"""Counts the costs of requests for Redis and gateways: commands, scripts, changes, bytes and CPU.

All but the CPU is the same on every machine. Gateways are processes of their own, before scripted workers that need
almost no CPU, on a private Valkey or a cluster.
"""

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio as redis
import yaml

from gateway.demo.demo_processes import free_port
from gateway.process.children import Child
from gateway.process.secrets import deployment_secret
from gateway.queueing.shared.keys import QueueKeys
from gateway.settings.tree import Settings
from gateway.tenants.keys import NewKey, new_key, pepper
from tests.benchmarks.fleet.load import BLOCK_SIZE, FleetLoad, model_names, send, wait_until_served
from tests.benchmarks.subjects import READY, cpu_seconds
from tests.fakes.redis_cluster import RedisCluster
from tests.stage.forks import ForkedChild
from tests.stage.valkey import ValkeyServer

LIMITS = [{"requests": 100_000_000, "per": "minute"}, {"total_tokens": 10_000_000_000, "per": "minute"}]
SCRIPTS = ("fcall", "fcall_ro", "evalsha", "eval")
START_SECONDS_MAX = 120.0
QUIET_SECONDS = 1.5
IDLE_SECONDS = 6.0
WARM_UP_REQUESTS = 32
"""For each gateway that serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """What one request costs on average, less what the gateways cost without requests."""

    requests_per_second: float
    """The rate that was reached."""
    scripts: float
    commands: float
    """Those inside of scripts included."""
    changes: float
    """Changes of the index, each of which is sent to every gateway."""
    turns: float
    """Turns that were given to requests that waited."""
    bytes_in: float
    """Into Redis."""
    bytes_out: float
    redis_cpu_us: float
    serving_cpu_us: float
    """Of the gateway that serves the request."""
    following_cpu_us: float
    """Of one gateway that gets no requests."""
    idle_commands: float
    """A second, for each gateway."""
    idle_bytes_in: float
    idle_bytes_out: float
    busiest_primary: float
    """Commands of the busiest primary as a multiple of their mean; 1 for one server."""


async def count(load: FleetLoad, directory: Path, *, idle_seconds: float = IDLE_SECONDS) -> FleetCounts:
    """Start the gateways, send the load, and return what it cost. Raises ChildFailed.

    `idle_seconds`: how long gateways at rest are counted.
    """
    async with started(load, directory) as fleet:
        await wait_until_served(fleet.urls, fleet.keys[0], load)
        return await _count(load, fleet, idle_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedFleet:
    """The gateways of a load that run, and the clients of their Redis."""

    gateways: Sequence[Child]
    keys: Sequence[str]
    """API keys, of a tenant each."""
    clients: Sequence[Any]
    """Clients of each primary."""

    @property
    def urls(self) -> list[str]:
        """The URLs of the gateways."""
        return [str(gateway.url) for gateway in self.gateways]


@asynccontextmanager
async def started(load: FleetLoad, directory: Path) -> AsyncIterator[StartedFleet]:
    """Start Redis, scripted workers and the gateways, and stop them afterwards. Raises ChildFailed."""
    async with AsyncExitStack() as stack:
        url, clients = await _redis(stack, load, directory)
        worker = await _start(stack, directory, "worker", "tests.benchmarks.fast_worker", *model_names(load))
        addresses = str(worker.url).split(",")
        secret = pepper(deployment_secret(Settings(state_directory=str(directory))))
        keys = [new_key(secret) for _ in range(load.tenants)]
        gateways = []
        for number in range(load.gateways):
            file = directory / f"gateway-{number}.yaml"
            settings = _settings(directory, url, load, addresses, keys)
            file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
            name = f"gateway-{number}"
            gateways.append(await _start(stack, directory, name, "gateway", "serve", "--config", str(file)))
        yield StartedFleet(gateways=gateways, keys=[key.text for key in keys], clients=clients)


async def _count(load: FleetLoad, fleet: StartedFleet, idle_seconds: float) -> FleetCounts:
    urls, keys, clients, gateways = fleet.urls, fleet.keys, fleet.clients, fleet.gateways
    warm_up = max(WARM_UP_REQUESTS * load.members, math.lcm(load.models, load.tenants))
    await send(urls, keys, load, "warm", warm_up)
    await asyncio.sleep(QUIET_SECONDS)
    before = await figures(clients, gateways)
    await asyncio.sleep(idle_seconds)
    rested = await figures(clients, gateways)
    loop = asyncio.get_running_loop()
    began = loop.time()
    sent = await send(urls, keys, load, "new", load.requests)
    await asyncio.sleep(QUIET_SECONDS)
    after = await figures(clients, gateways)
    seconds = loop.time() - began
    idle = {name: (rested[name] - before[name]) / idle_seconds for name in before}
    spent = {name: after[name] - rested[name] - idle[name] * seconds for name in after}
    a_request = {name: value / load.requests for name, value in spent.items()}
    serving = [f"cpu_{at}" for at in range(load.members)]
    following = [f"cpu_{at}" for at in range(load.members, load.gateways)]
    primaries = [spent[f"commands_{at}"] for at in range(len(clients))]
    return FleetCounts(
        requests_per_second=load.requests / sent.seconds,
        scripts=a_request["scripts"],
        commands=a_request["commands"],
        changes=a_request["changes"],
        turns=a_request["turns"],
        bytes_in=a_request["bytes_in"],
        bytes_out=a_request["bytes_out"],
        redis_cpu_us=a_request["redis_cpu"] * 1e6,
        serving_cpu_us=sum(a_request[name] for name in serving) * 1e6,
        following_cpu_us=sum(a_request[name] for name in following) * 1e6 / max(1, len(following)),
        idle_commands=idle["commands"] / load.gateways,
        idle_bytes_in=idle["bytes_in"] / load.gateways,
        idle_bytes_out=idle["bytes_out"] / load.gateways,
        busiest_primary=max(primaries) * len(primaries) / sum(primaries),
    )


async def _redis(stack: AsyncExitStack, load: FleetLoad, directory: Path) -> tuple[str, list[Any]]:
    """Start Redis, and return its URL and a client for each primary."""
    if not load.primaries:
        (directory / "valkey").mkdir()
        valkey = ValkeyServer(directory / "valkey")
        stack.callback(valkey.kill)
        await asyncio.to_thread(valkey.start)
        return valkey.url, [await stack.enter_async_context(redis.from_url(valkey.url))]
    cluster = RedisCluster(node_timeout_ms=20_000, primaries=load.primaries)
    stack.callback(cluster.close)
    await asyncio.to_thread(cluster.start)
    addresses = [f"redis://127.0.0.1:{node.port}" for node in cluster.nodes]
    return cluster.url, [await stack.enter_async_context(redis.from_url(each)) for each in addresses]


async def _start(stack: AsyncExitStack, directory: Path, name: str, *module: str) -> Child:
    child = ForkedChild(name, lambda _: (sys.executable, "-m", *module), READY, directory / f"{name}.log")
    stack.push_async_callback(child.stop)
    await child.start(START_SECONDS_MAX)
    return child


def _settings(
    directory: Path, url: str, load: FleetLoad, addresses: Sequence[str], keys: Sequence[NewKey]
) -> Mapping[str, Any]:
    return {
        "listen": {"port": 0},
        "admin": {"port": free_port(0)},
        "redis": {"url": url, "timeout_ms": 10_000},
        "state_directory": str(directory),
        "models": [
            {"name": name, "tokenizer": "text", "block_size": BLOCK_SIZE} for name in model_names(load)
        ],
        "queueing": {
            "release_window_tokens": load.window_tokens,
            "tenant_shards": dict.fromkeys(model_names(load), load.tenant_shards),
        },
        "workers": [
            {"id": f"{name}-{at}", "kind": "sglang", "url": each, "models": [name]}
            for name in model_names(load)
            for at, each in enumerate(addresses[: 2 if load.models == 1 else 1])
        ],
        "plans": [{"name": "fleet", **({"limits": LIMITS, "concurrency": 100_000} if load.limited else {})}],
        "tenants": [
            {
                "id": f"tenant-{at}",
                "organisation": f"organisation-{at}",
                "plan": "fleet",
                "keys": [{"id": key.id, "hash": key.hash}],
            }
            for at, key in enumerate(keys)
        ],
        "drain": {"notice_seconds": 0, "seconds": 1},
    }


async def figures(clients: Sequence[Any], gateways: Sequence[Child]) -> dict[str, float]:
    """Return the counters of all primaries together, and the CPU seconds of each gateway so far."""
    found: dict[str, float] = {f"cpu_{at}": cpu_seconds(each.pid or 0) for at, each in enumerate(gateways)}
    sums = dict.fromkeys(
        ("scripts", "commands", "changes", "turns", "bytes_in", "bytes_out", "redis_cpu"), 0.0
    )
    for at, client in enumerate(clients):
        stats, cpu = await client.info("stats"), await client.info("cpu")
        rows = (await client.info("commandstats")).items()
        calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in rows}
        found[f"commands_{at}"] = sum(calls.values())
        sums["commands"] += sum(calls.values())
        sums["scripts"] += sum(calls.get(name, 0) for name in SCRIPTS)
        sums["changes"] += calls.get("spublish", 0)
        sums["turns"] += await _turns(client)
        sums["bytes_in"] += stats["total_net_input_bytes"]
        sums["bytes_out"] += stats["total_net_output_bytes"]
        sums["redis_cpu"] += cpu["used_cpu_user"] + cpu["used_cpu_sys"]
    return found | sums


async def _turns(client: Any) -> float:
    """Return how many messages the stream of turns has had, on the server that keeps it."""
    try:
        return float((await client.xinfo_stream(QueueKeys("rg").turns))["entries-added"])
    except redis.ResponseError:
        return 0.0
