"""`make soak`: a million requests (or fewer) through real gateways, and a verdict on their memory.

    callers --> gateway(s) --> two workers that need almost no CPU; a real engine for one request in a hundred
                    |
                 Valkey

Exit code 1 when memory is not flat, when a request fails, or when anything is still held at the end.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any

import aiohttp
import redis.asyncio as redis
import uvloop
from rich.console import Console

from gateway.tenants.keys import new_key, pepper
from tests.benchmarks.report import new_table
from tests.benchmarks.subjects import run_to_its_end
from tests.soak.callers import Tally, call
from tests.soak.lengths import every_length
from tests.soak.samples import Sample, Verdict, counted, verdict
from tests.soak.streams import ROUNDS_MIN, Round, growth, stream_round, warm_rounds
from tests.soak.traffic import ENGINE, TEXT, TOKENS, Traffic
from tests.stage.processes import (
    EmbeddedProcess,
    GatewayProcess,
    descriptors,
    fast_workers,
    resident_bytes,
)
from tests.stage.valkey import ValkeyServer

TENANTS = 200
SECRET = "a secret of the tests"
REDIS, ENGINE_NAME = "Valkey", "engine"
SAMPLES = 100
REQUESTS_MIN = 10_000
IDLE_SECONDS_MAX = 30.0
WINDOW_TOKENS = 2048
INDEX_BYTES = 4 * 1024**2
TOKENIZER_BYTES = 2 * 1024**2
EVENT_STEPS = 500
"""Small bounds, so that everything bounded is full and evicts before the counted part begins."""

WAITING_SECONDS_MAX = 600
"""On a busy machine a round of streams takes minutes, and all its requests wait together."""

ROWS_SHOWN = 24


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=300_000, help="0: none, rounds of streams alone")
    parser.add_argument("--streams", type=int, default=2000, help="streams that are open at one time")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of such streams; 0: none")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--connections", type=int, default=24, help="callers at one time")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--leak", type=int, metavar="BYTES", help="leak so many bytes per request: the soak must fail"
    )
    parser.add_argument("--json", type=Path, help="write all samples and the verdicts there")
    options = parser.parse_args()
    if 0 < options.requests < REQUESTS_MIN:
        parser.error(f"--requests: {REQUESTS_MIN:,} at least, or nothing can be said")
    if 0 < options.rounds < ROUNDS_MIN:
        parser.error(f"--rounds: {ROUNDS_MIN} at least, or nothing can be said")
    return options


def settings(
    valkey: ValkeyServer, checkpoint: Path, workers: Sequence[dict[str, str]], keys: Any
) -> dict[str, Any]:
    """Return settings with everything on, limits that refuse no request, and small bounds, so that they are met."""
    limits = [{"requests": 10**9, "per": "minute"}, {"total_tokens": 10**12, "per": "minute"}]
    tokenizer = {"tokenizer": str(checkpoint), "tokenizer_memory_bytes_max": TOKENIZER_BYTES}
    return {
        "redis": {"url": valkey.url, "timeout_ms": 1000},
        "deployment_secret": SECRET,
        "models": [
            {"name": TEXT, "tokenizer": "text"},
            {"name": TOKENS, **tokenizer},
            {"name": ENGINE, **tokenizer, "block_size": 16},
        ],
        "workers": list(workers),
        "plans": [{"name": "plan", "limits": limits, "concurrency": 10_000}],
        "tenants": [
            {"id": tenant, "plan": "plan", "keys": [{"id": key.id, "hash": key.hash}]}
            for tenant, key in keys.items()
        ],
        "queueing": {"release_window_tokens": WINDOW_TOKENS, "waiting_seconds_max": WAITING_SECONDS_MAX},
        "index": {"memory_bytes_max": INDEX_BYTES},
        "authentication": {"failures_per_minute_max": 10**9},
        "listen": {"connections_per_address_max": 100_000},
        "telemetry": {"log_level": "warning"},
        "drain": {"notice_seconds": 0, "seconds": 1},
    }


class Soak:
    """The running processes, and the samples of their memory."""

    def __init__(
        self, gateways: Sequence[GatewayProcess], engine: EmbeddedProcess, valkey: ValkeyServer
    ) -> None:
        self._gateways = gateways
        self._engine = engine
        self._redis = redis.from_url(valkey.url)
        self._started = time.monotonic()
        self.http = aiohttp.ClientSession()

    async def sample(self, requests: int) -> Sample:
        """Return a sample after so many requests."""
        # Memory first: the text of the metrics takes megabytes for a moment.
        memory = {gateway.name: resident_bytes(gateway.pid) for gateway in self._gateways}
        gauges = [await gateway.metrics(self.http) for gateway in self._gateways]

        def total(name: str) -> int:
            return int(sum(each[name] for each in gauges))

        memory[ENGINE_NAME] = resident_bytes(self._engine.pid)
        memory[REDIS] = int((await self._redis.info("memory"))["used_memory"])
        return Sample(
            requests=requests,
            seconds=time.monotonic() - self._started,
            memory=memory,
            descriptors=sum(descriptors(gateway.pid) for gateway in self._gateways),
            tasks=total("tasks"),
            leases=total("leases"),
            nodes=total("index_nodes"),
            blocks=total("index_blocks"),
            pages=total("worker_pages"),
        )

    async def still_held(self) -> list[str]:
        """Return what is still held although no request runs, after up to IDLE_SECONDS_MAX."""
        names = ("leases", "worker_streams", "worker_queued_tokens", "worker_kv_tokens", "waiting_requests")
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        while True:
            gauges = [await gateway.metrics(self.http) for gateway in self._gateways]
            held = [f"{name} {sum(each.get(name, 0) for each in gauges):g}" for name in names]
            held = [each for each in held if not each.endswith(" 0")]
            if not held or time.monotonic() > deadline:
                return held
            await asyncio.sleep(0.2)

    async def streams(self) -> tuple[int, dict[str, int]]:
        """Return the streams that are open at workers, and the memory of each gateway."""
        memory = {gateway.name: resident_bytes(gateway.pid) for gateway in self._gateways}
        gauges = [await gateway.metrics(self.http) for gateway in self._gateways]
        return int(sum(each.get("worker_streams", 0) for each in gauges)), memory

    async def waited(self) -> int:
        """Return how many requests have waited in a waiting room."""
        gauges = [await gateway.metrics(self.http) for gateway in self._gateways]
        return int(sum(each.get("queue_duration_seconds_count", 0) for each in gauges))

    async def close(self) -> None:
        """Close the connections of the samples."""
        await self.http.close()
        await self._redis.aclose()


async def run(options: argparse.Namespace, console: Console) -> bool:
    """Start everything, send all requests, print the report, and return whether all is well. Raises ChildFailed."""
    keys = {f"tenant-{at:03}": new_key(pepper(SECRET.encode())) for at in range(TENANTS)}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radixgate-soak-")))
        valkey = ValkeyServer(directory)
        stack.callback(valkey.kill)
        valkey.start()
        checkpoint = directory / ENGINE
        await run_to_its_end(
            "the checkpoint", sys.executable, "-m", "workers.engine.tiny_checkpoint", str(checkpoint)
        )
        fast = fast_workers(directory, (TEXT, TOKENS))
        engine = EmbeddedProcess(
            ENGINE_NAME, directory, checkpoint, kv_tokens=8192, kv_events_buffer_steps=EVENT_STEPS
        )
        for process in (fast, engine):
            stack.push_async_callback(process.stop)
        await asyncio.gather(fast.start(), engine.start())
        workers = [
            {"id": f"fast-{n}", "kind": "sglang", "url": url} for n, url in enumerate(fast.url.split(","))
        ]
        workers.append({"id": ENGINE_NAME, "kind": "embedded", "url": engine.url})
        tree = settings(valkey, checkpoint, workers, keys)
        program = ["gateway"] if options.leak is None else ["tests.soak.leaking", str(options.leak)]
        gateways = [GatewayProcess(f"gateway-{n}", directory, tree, program) for n in range(options.gateways)]
        for gateway in gateways:
            stack.push_async_callback(gateway.stop)
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        soak = Soak(gateways, engine, valkey)
        stack.push_async_callback(soak.close)
        for gateway in gateways:
            await gateway.all_up(soak.http)
        await every_length(soak.http, engine.url, ENGINE)

        texts = {tenant: key.text for tenant, key in keys.items()}
        flat = not options.requests or await soak_requests(options, soak, gateways, texts, console)
        return await soak_streams(options, soak, gateways, texts, console) and flat


async def soak_requests(
    options: argparse.Namespace,
    soak: Soak,
    gateways: Sequence[GatewayProcess],
    keys: dict[str, str],
    console: Console,
) -> bool:
    """Send all requests, print the report, and return whether all is well."""
    tally, samples = await soaked(options, soak, gateways, keys)
    held, waited = await soak.still_held(), await soak.waited()
    names = [*(gateway.name for gateway in gateways), REDIS, ENGINE_NAME]
    try:
        verdicts = [verdict(name, samples) for name in names]
    except ValueError as err:
        console.print(f"{tally.requests:,} requests: {err}")
        return False
    return report(console, options, samples, tally, waited, held, verdicts)


async def soak_streams(
    options: argparse.Namespace,
    soak: Soak,
    gateways: Sequence[GatewayProcess],
    keys: dict[str, str],
    console: Console,
) -> bool:
    """Let all rounds of streams pass, print their memory, and return whether all is well."""
    traffic, tally, rounds = Traffic(keys, options.seed), Tally(), list[Round]()
    held = list[str]()
    for number in range(options.rounds):
        open_max, memory_open = await stream_round(traffic, options.streams, gateways, tally, soak.streams)
        held = await soak.still_held()
        _, memory_after = await soak.streams()
        rounds.append(Round(open_max=open_max, memory_open=memory_open, memory_after=memory_after))
        console.print(f"round {number + 1}: {rounds[-1].line()}")
    failed = [f"{tally.failed:,} streams failed, and the first of them so:"] if tally.failed else []
    failed += [f"{count} x {why}" for why, count in tally.troubles.items()]
    failed += [f"STILL HELD after the streams: {', '.join(held)}"] if held else []
    for gateway in gateways if rounds else ():
        risen, allowed = growth(rounds, gateway.name)
        flat = risen <= allowed
        console.print(
            f"{gateway.name}: {'flat' if flat else 'NOT FLAT'} over rounds of streams: {risen / 1024**2:+.1f} MiB "
            f"from round {warm_rounds(len(rounds)) + 1} on; allowed {allowed / 1024**2:.1f} MiB"
        )
        failed += [] if flat else [f"{gateway.name} grows with each round of streams"]
    for each in failed:
        console.print(each, markup=False)
    return not failed


async def soaked(
    options: argparse.Namespace, soak: Soak, gateways: Sequence[GatewayProcess], keys: dict[str, str]
) -> tuple[Tally, list[Sample]]:
    """Send all requests, and take a sample after each hundredth of them. Ctrl-C ends the run early."""
    tally, enough = Tally(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, enough.set)
    traffic = Traffic(keys, options.seed)
    asks = takewhile(lambda _: not enough.is_set(), islice(chain(traffic.tour(), traffic), options.requests))
    callers = [
        asyncio.create_task(call(asks, gateway.host, gateway.port, tally))
        for at in range(options.connections)
        for gateway in [gateways[at % len(gateways)]]
    ]
    samples = [await soak.sample(0)]
    while not all(caller.done() for caller in callers):
        await asyncio.sleep(0.05)
        if tally.requests >= len(samples) * options.requests // SAMPLES:
            samples.append(await soak.sample(tally.requests))
            print(f"\r{tally.requests:,} requests", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)
    await asyncio.gather(*callers)
    samples.append(await soak.sample(tally.requests))
    return tally, samples


def report(
    console: Console,
    options: argparse.Namespace,
    samples: Sequence[Sample],
    tally: Tally,
    waited: int,
    held: Sequence[str],
    verdicts: Sequence[Verdict],
) -> bool:
    """Print the samples and the verdicts, and return whether all is well."""
    names = [each.name for each in verdicts]
    drawn = new_table(
        f"{tally.requests:,} requests, {options.gateways} gateway(s), {TENANTS} tenants, seed {options.seed}",
        (),
        (
            "requests",
            "seconds",
            *(f"{name} MiB" for name in names),
            "fds",
            "tasks",
            "leases",
            "nodes",
            "blocks",
            "pages",
        ),
    )
    first_counted = counted(samples)[0]
    for at, sample in enumerate(samples):
        if at % max(1, len(samples) // ROWS_SHOWN) == 0 or sample is samples[-1]:
            drawn.add_row(
                f"{sample.requests:,}",
                f"{sample.seconds:,.0f}",
                *(f"{sample.memory[name] / 1024**2:,.1f}" for name in names),
                *(f"{n:,}" for n in (sample.descriptors, sample.tasks, sample.leases)),
                *(f"{n:,}" for n in (sample.nodes, sample.blocks, sample.pages)),
            )
    console.print(drawn)
    seconds = samples[-1].seconds - samples[0].seconds
    console.print(
        f"answered {tally.answered:,}, left by their client {tally.left:,}, refused as they should "
        f"{tally.refused:,}, failed {tally.failed:,}; {waited:,} waited for their turn; "
        f"{tally.requests / seconds:,.0f} requests/s"
    )
    for why, count in tally.troubles.items():
        console.print(f"  {count} x {why}", markup=False)
    for each in verdicts:
        console.print(
            f"{each.name}: {'flat' if each.flat else 'NOT FLAT'}: {each.growth / 1024**2:+.1f} MiB from request "
            f"{first_counted.requests:,} on ({each.bytes_per_request:+.1f} bytes a request); "
            f"allowed {each.allowed / 1024**2:.1f} MiB"
        )
    if held:
        console.print(f"STILL HELD after {IDLE_SECONDS_MAX:g} s without requests: {', '.join(held)}")
    if options.json is not None:
        result = {"samples": [asdict(s) for s in samples], "verdicts": [asdict(v) for v in verdicts]}
        options.json.write_text(json.dumps(result, indent=1))
    return not tally.failed and not held and all(each.flat for each in verdicts)


if __name__ == "__main__":
    sys.exit(0 if uvloop.run(run(arguments(), Console(width=max(Console().width, 140)))) else 1)
