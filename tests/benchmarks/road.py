"""`make bench-road`: the costs of each package and each stage of one request for the gateway.

    python -m tests.benchmarks.road [--requests N] [--json FILE]

Calls of each room are counted under cProfile, for a whole answer and for a stream of 64 chunks. Microseconds and
allocated blocks of each stage are measured without a profiler, one request at a time. The bare aiohttp relay stands
beside them: its CPU time per request is the least that a gateway on aiohttp can take. Then the same request is
counted and timed without traces, with the tail rule alone, and sampled. No figure fails the build.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from tests.benchmarks.calls import Calls, counted, send
from tests.benchmarks.subjects import AIOHTTP, RADIXGATE, Field, Subject, cpu_seconds, running

STAGE_REQUESTS = 300
ROUNDS = 6
ROUND_SECONDS = 1.0

TRACING: dict[str, dict[str, object]] = {
    "no traces": {},
    "tail rule, not sampled": {"sample_ratio": 0.0},
    "sampled": {"sample_ratio": 1.0},
}
"""Settings of telemetry, beside the address of a collector."""


def main() -> None:
    """Measure, print the tables, and write the JSON file if one was asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000, help="Requests that are counted.")
    parser.add_argument("--json", type=Path, help="File for the figures.")
    options = parser.parse_args()
    console = Console()
    result = asyncio.run(_measured(options.requests, console))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


async def _measured(requests: int, console: Console) -> dict[str, object]:
    directory = Path(tempfile.mkdtemp(prefix="road-"))
    async with running((RADIXGATE, AIOHTTP), directory, profiled=directory) as field:
        gateway = _one(field, RADIXGATE)
        kinds = {"whole answer": False, "64-chunk stream": True}
        calls = {name: await counted(gateway, directory, requests, stream=on) for name, on in kinds.items()}
        stages = {name: await _stages(gateway, directory, stream=on) for name, on in kinds.items()}
        cpu = await _least_cpu_us(field.subjects, kinds, requests)
    console.print(_rooms_table(calls))
    console.print(_stages_table(stages))
    for name in kinds:
        ours, bare = cpu[RADIXGATE, name], cpu[AIOHTTP, name]
        console.print(f"{name}: {ours:.0f} us of CPU, bare relay {bare:.0f} us: {ours / bare:.2f} x")
    tracing = {name: await _traced(requests, rules) for name, rules in TRACING.items()}
    console.print(_tracing_table(tracing))
    return {
        "tracing": tracing,
        "calls": {name: asdict(one) for name, one in calls.items()},
        "stages": stages,
        "cpu_us": {" ".join(key): value for key, value in cpu.items()},
    }


async def _traced(requests: int, rules: dict[str, object]) -> dict[str, float]:
    """Return calls and microseconds of CPU of a whole answer, with these settings of telemetry."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every export of spans with success."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length:")[2].split()[0])
                await reader.readexactly(size)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    collector = await asyncio.start_server(accept, "127.0.0.1", 0)
    directory = Path(tempfile.mkdtemp(prefix="road-"))
    more: dict[str, object] = {}
    if rules:
        port = collector.sockets[0].getsockname()[1]
        more["telemetry"] = {"otlp_endpoint": f"http://127.0.0.1:{port}", **rules}
    async with running((RADIXGATE,), directory, profiled=directory, more=more) as field:
        one = _one(field, RADIXGATE)
        # The work done once after the start falls into the first count.
        counts = [await counted(one, directory, requests, stream=False) for _ in range(2)]
        calls = min(counts, key=lambda each: each.all)
        cpu = (await _least_cpu_us((one,), {"whole": False}, requests))[one.name, "whole"]
    collector.close()
    return {"all": calls.all, "own": calls.own, "cpu_us": cpu}


def _tracing_table(tracing: dict[str, dict[str, float]]) -> Table:
    table = Table(title="A whole answer with and without traces")
    table.add_column("telemetry")
    for name in ("calls", "own calls", "us of CPU"):
        table.add_column(name, justify="right")
    for name, costs in tracing.items():
        table.add_row(name, *(f"{costs[each]:.0f}" for each in ("all", "own", "cpu_us")))
    return table


def _one(field: Field, name: str) -> Subject:
    return next(one for one in field.subjects if one.name == name)


async def _stages(one: Subject, directory: Path, *, stream: bool) -> dict[str, tuple[float, float]]:
    """Return microseconds and allocated blocks by stage, for one request at a time."""
    url, figures = f"http://{one.host}:{one.port}/v1/chat/completions", directory / "stage_figures"
    # Only a request that belongs to a trace marks its steps.
    headers = {"authorization": f"Bearer {one.key}", "traceparent": f"00-{1:032x}-{1:016x}-01"}
    async with aiohttp.ClientSession(headers=headers) as http:
        (directory / "stages").touch()
        await asyncio.sleep(0.3)
        await send(http, url, one.model, STAGE_REQUESTS, stream=stream, connections=1)
        figures.unlink(missing_ok=True)
        (directory / "stages").unlink()
        while not figures.exists():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
    sums = json.loads(figures.read_text())
    return {step: (us / count, blocks / count) for step, (count, us, blocks) in sums.items() if count}


async def _least_cpu_us(
    subjects: Sequence[Subject], kinds: dict[str, bool], requests: int
) -> dict[tuple[str, str], float]:
    """Return microseconds of CPU per request by subject and kind: the least of ROUNDS, which are taken in turns.

    Other work on the machine only ever adds to a round, and disturbs subjects that take turns alike.
    """
    least: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for one in subjects:
            for name, on in kinds.items():
                took = await _cpu_us(one, requests, stream=on)
                least[one.name, name] = min(took, least.get((one.name, name), took))
    return least


async def _cpu_us(one: Subject, requests: int, *, stream: bool) -> float:
    """Return microseconds of CPU per request with 32 connections."""
    url = f"http://{one.host}:{one.port}/v1/chat/completions"
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {one.key}"}) as http:
        await send(http, url, one.model, 200, stream=stream)
        before, started = cpu_seconds(one.pid), time.monotonic()
        sent = 0
        while time.monotonic() - started < ROUND_SECONDS:
            await send(http, url, one.model, requests, stream=stream)
            sent += requests
        return 1e6 * (cpu_seconds(one.pid) - before) / sent


def _rooms_table(calls: dict[str, Calls]) -> Table:
    table = Table(title="Calls of one request, by room (own functions + what they call outside)")
    table.add_column("room")
    for name in calls:
        table.add_column(name, justify="right")
        table.add_column("us profiled", justify="right")
    rooms = sorted({room for one in calls.values() for room in one.rooms})
    for room in rooms:
        row = [room]
        for one in calls.values():
            its = one.rooms.get(room)
            row += [f"{its.own:.1f} + {its.outside:.1f}", f"{its.microseconds:.0f}"] if its else ["", ""]
        table.add_row(*row)
    row = ["all / own"]
    for one in calls.values():
        row += [f"{one.all:.0f} / {one.own:.0f}", f"{one.modules} modules, {one.functions} functions"]
    table.add_row(*row)
    return table


def _stages_table(stages: dict[str, dict[str, tuple[float, float]]]) -> Table:
    table = Table(title="Stages of one request, one at a time")
    table.add_column("stage")
    for name in stages:
        table.add_column(f"{name}, us", justify="right")
        table.add_column("blocks", justify="right")
    for step in dict.fromkeys(step for one in stages.values() for step in one):
        row = [step]
        for one in stages.values():
            us, blocks = one.get(step, (0.0, 0.0))
            row += [f"{us:.1f}", f"{blocks:+.1f}"]
        table.add_row(*row)
    return table


if __name__ == "__main__":
    main()
