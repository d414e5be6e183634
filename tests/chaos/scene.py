"""The processes: Redis servers, three real engines that publish KV events, two gateways.

clients --> gateway-0 --+--> worker-0, worker-1, worker-2
        \\-> gateway-1 --+
                |
              link --> Valkey

Other stages have a sentinel or a cluster in place of the Valkey, links before the workers, or PostgreSQL behind a
link.
"""

import asyncio
import inspect
import json
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import asyncpg

from gateway.tenants.keys import NewKey, new_key, pepper
from tests.benchmarks.subjects import run_to_its_end
from tests.chaos.servers import LinkedValkey, Servers, ValkeyCluster, WatchedValkey
from tests.stage.link import Link
from tests.stage.ports import free_port, free_ports
from tests.stage.postgres import PostgresServer
from tests.stage.processes import EmbeddedProcess, GatewayProcess, Process

MODEL = "tiny"
GATEWAYS = 2
TENANTS = ("acme", "globex", "initech")
SECRET = "a secret of the tests"
PAGE_SIZE = 16
KV_TOKENS = 6000
"""So few that engines evict blocks all the time."""

WINDOW_TOKENS = 48
"""One prompt at a time is computed at a worker: both gateways give turns to waiting requests all the time."""

DAY_US = 86_400 * 10**6
REQUESTS_A_DAY, TOKENS_A_DAY = 10**6, 10**9
CONCURRENCY = 64
AMOUNTS = {"requests/day": REQUESTS_A_DAY, "total_tokens/day": TOKENS_A_DAY}
"""Amounts of smooth limits; see policies/admission/limit_windows.py."""
METER = struct.Struct("<ddd")
"""The format of gateway/quotas/lua/windows.lua: units used, since when in microseconds, and an unused number."""


class Stage(Enum):
    """What a scene has beside gateways and workers."""

    VALKEY = "a Valkey behind a link"
    WORKER_LINKS = "a Valkey behind a link, and a link before each worker"
    DATABASE = "a Valkey and a PostgreSQL, each behind a link"
    SENTINEL = "a primary and a replica that a sentinel watches"
    CLUSTER = "a cluster of three primaries with a replica each"


@dataclass(frozen=True, slots=True)
class LinkedPostgres:
    """A PostgreSQL behind a link."""

    server: PostgresServer
    link: Link
    port: int
    """Of the link."""

    async def charged(self) -> tuple[int, int]:
        """Return the number of answered requests in the usage ledger, and their tokens."""
        connection = await asyncpg.connect(self.server.url())
        try:
            row = await connection.fetchrow(
                "SELECT count(*), coalesce(sum(prompt_tokens + output_tokens), 0) FROM usage WHERE code = 'ok'"
            )
            assert row is not None
            return int(row[0]), int(row[1])
        finally:
            await connection.close()


@dataclass
class Scene:
    """The running processes, and what the current fault has done to them."""

    servers: Servers
    database: LinkedPostgres | None
    worker_links: list[Link]
    """By worker; empty on stages without such links."""
    workers: list[EmbeddedProcess]
    gateways: list[GatewayProcess]
    keys: Mapping[str, NewKey]
    http: aiohttp.ClientSession
    random: Random
    gone: set[str] = field(default_factory=set)
    """The gateways that the current fault has killed: their requests under way are excused."""
    seeded: dict[str, float] = field(default_factory=dict)
    """The result of `charged` when the buckets were last seeded."""
    victim: Process | None = None
    """The process that the current fault has hit."""
    hit_link: Link | None = None
    """The link that the current fault has hit."""

    @property
    def linked(self) -> LinkedValkey:
        """The Valkey behind a link."""
        assert isinstance(self.servers, LinkedValkey)
        return self.servers

    @property
    def watched(self) -> WatchedValkey:
        """The servers that a sentinel watches."""
        assert isinstance(self.servers, WatchedValkey)
        return self.servers

    @property
    def clustered(self) -> ValkeyCluster:
        """The cluster."""
        assert isinstance(self.servers, ValkeyCluster)
        return self.servers

    async def seed_quotas(self, *, flush: bool = False) -> None:
        """Fill every bucket by half, so that all charges can be computed exactly: no bucket is ever full.

        Each bucket is marked as whole: no usage ledger knows of that half, and what one gateway would restore
        from its ledger would count as everything that had ended by then, at the other gateway too. With `flush`
        all other data are deleted in the same transaction.
        """
        now = float(int(time.time() * 1e6))
        meters = {limit: METER.pack(amount / 2, now, 0.0) for limit, amount in AMOUNTS.items()}
        async with AsyncExitStack() as stack:
            to = self.servers.client
            if flush:
                to = await stack.enter_async_context(to.pipeline(transaction=True))
                await _sent(to.flushall())
            for tenant in TENANTS:
                await _sent(to.hset(_bucket(tenant), mapping=meters))
                # Whole since the first millisecond of the Unix epoch.
                await _sent(to.hset(f"rg:{{{tenant}}}:whole", _bucket(tenant), "1"))
            if flush:
                await to.execute()
        self.seeded = {limit: len(TENANTS) * _taken(meter, AMOUNTS[limit]) for limit, meter in meters.items()}

    async def charged(self) -> dict[str, float]:
        """Return what was taken from the buckets of all tenants, in units, up to a constant."""
        sums = dict.fromkeys(AMOUNTS, 0.0)
        for tenant in TENANTS:
            found = await self.servers.client.hgetall(_bucket(tenant))
            for limit, amount in AMOUNTS.items():
                sums[limit] += _taken(found[limit.encode()], amount)
        return sums

    async def running(self) -> set[str]:
        """Return the reservations that hold a tenant's concurrency."""
        now_ms = int(time.time() * 1000)
        held: set[str] = set()
        for tenant in TENANTS:
            names = await self.servers.client.zrangebyscore(
                f"rg:{{{tenant}}}:running:tenant:{tenant}", now_ms, "+inf"
            )
            held.update(name.decode() for name in names)
        return held

    async def waited(self) -> dict[str, float]:
        """Return how many requests have waited in a waiting room, by gateway; a restarted gateway counts from 0."""
        return {
            gateway.name: (await gateway.metrics(self.http)).get("queue_duration_seconds_count", 0.0)
            for gateway in self.gateways
        }

    async def queue_left(self) -> list[str]:
        """Return what the shared queue still has in Redis: tickets, turns, placements and loads."""
        hashes, sets = ("loads", "places"), ("owned", "grants", f"active:{MODEL}", f"tickets:{MODEL}")
        client = self.servers.client
        found = [await client.hlen(f"rg:{{queue}}:{name}") for name in hashes]
        found += [await client.zcard(f"rg:{{queue}}:{name}") for name in sets]
        return [f"{count} of {name}" for name, count in zip((*hashes, *sets), found, strict=True) if count]

    async def index(self, command: str, *more: str) -> tuple[int, str]:
        """Run `radixgate index COMMAND` and return its exit code and output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "index", command),
            *("--config", str(self.gateways[0].settings_file), *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def index_stats(self) -> dict[str, Any]:
        """Return the output of `radixgate index stats --json`."""
        _, output = await self.index("stats", "--json")
        found: dict[str, Any] = json.loads(output)
        return found


async def _sent(reply: Any) -> None:
    """Wait for the reply to a command, unless a pipeline has only taken the command."""
    if inspect.isawaitable(reply):
        await reply


def _bucket(tenant: str) -> str:
    return f"rg:{{{tenant}}}:used:tenant:{tenant}"


def _taken(meter: bytes, amount: int) -> float:
    """Return the units in the bucket plus those that ran out of it, up to a constant."""
    used, since, _ = METER.unpack(meter)
    return used + since * amount / DAY_US


@asynccontextmanager
async def scene(directory: Path, seed: int, stage: Stage) -> AsyncIterator[Scene]:
    """Start everything and wait until all workers are up. Raises ChildFailed, PostgresMissing."""
    keys = {tenant: new_key(pepper(SECRET.encode())) for tenant in TENANTS}
    async with AsyncExitStack() as stack:
        database = await _database(stack) if stage is Stage.DATABASE else None
        servers: LinkedValkey | WatchedValkey | ValkeyCluster
        match stage:
            case Stage.SENTINEL:
                servers = WatchedValkey(directory)
            case Stage.CLUSTER:
                servers = ValkeyCluster()
            case _:
                servers = LinkedValkey(directory)
        stack.push_async_callback(servers.close)
        await servers.start()
        checkpoint = directory / MODEL
        await run_to_its_end(
            "the checkpoint", sys.executable, "-m", "workers.engine.tiny_checkpoint", str(checkpoint)
        )
        workers = [
            EmbeddedProcess(f"worker-{n}", directory, checkpoint, kv_tokens=KV_TOKENS, page_size=PAGE_SIZE)
            for n in range(3)
        ]
        ports = [worker.port for worker in workers]
        links = list[Link]()
        if stage is Stage.WORKER_LINKS:
            ports = free_ports(len(workers))
            links = [
                await _opened(port, worker.port, stack) for port, worker in zip(ports, workers, strict=True)
            ]
        tree = settings(servers.url, checkpoint, workers, ports, keys)
        if database is not None:
            url = f"postgresql://test@127.0.0.1:{database.port}/postgres"
            tree |= {"database": {"url": url, "upgrade": "always"}}
        gateways = [GatewayProcess(f"gateway-{n}", directory, tree) for n in range(GATEWAYS)]
        for process in (*workers, *gateways):
            stack.push_async_callback(process.stop)
        await asyncio.gather(*(worker.start() for worker in workers))
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=2.0), connector=aiohttp.TCPConnector(force_close=True)
            )
        )
        for gateway in gateways:
            await gateway.all_up(http)
        here = Scene(servers, database, links, workers, gateways, keys, http, Random(seed))
        await here.seed_quotas()
        yield here


async def _opened(near: int, far: int, stack: AsyncExitStack) -> Link:
    """Return an open link between two ports."""
    link = Link(near, far)
    stack.push_async_callback(link.close)
    await link.open()
    return link


async def _database(stack: AsyncExitStack) -> LinkedPostgres:
    """Start a PostgreSQL behind a link. Raises PostgresMissing."""
    # In a directory that the user of PostgreSQL can reach.
    data = Path(tempfile.mkdtemp(prefix="radixgate-postgres-"))
    stack.callback(shutil.rmtree, data, ignore_errors=True)
    server = PostgresServer(data)
    await asyncio.to_thread(server.prepare)
    await asyncio.to_thread(server.start)
    stack.callback(server.stop)
    port = free_port()
    return LinkedPostgres(server, await _opened(port, server.port, stack), port)


def settings(
    redis_url: str,
    checkpoint: Path,
    workers: list[EmbeddedProcess],
    ports: list[int],
    keys: Mapping[str, NewKey],
) -> dict[str, Any]:
    """Return settings of a usual deployment, with limits that count and refuse no request.

    `ports` are those at which gateways find the workers.
    """
    limits = [
        {"requests": REQUESTS_A_DAY, "per": "day"},
        {"total_tokens": TOKENS_A_DAY, "per": "day"},
    ]
    return {
        "redis": {"url": redis_url},
        "deployment_secret": SECRET,
        "models": [{"name": MODEL, "tokenizer": str(checkpoint), "block_size": PAGE_SIZE}],
        "workers": [
            {"id": worker.name, "kind": "embedded", "url": f"http://127.0.0.1:{port}"}
            for worker, port in zip(workers, ports, strict=True)
        ],
        "plans": [{"name": "plan", "limits": limits, "concurrency": CONCURRENCY}],
        "tenants": [
            {"id": tenant, "plan": "plan", "keys": [{"id": key.id, "hash": key.hash}]}
            for tenant, key in keys.items()
        ],
        "queueing": {"release_window_tokens": WINDOW_TOKENS},
        "drain": {"notice_seconds": 1, "seconds": 20},
    }
