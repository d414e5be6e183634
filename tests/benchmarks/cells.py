"""`make bench-cells`: simulates a large fleet in cells, beside the same gateways in one cell.

    python -m tests.benchmarks.cells [--quick] [--cells N] [--workers N] [--tenants N] [--requests N] [--json FILE]
    python -m tests.benchmarks.cells --trace FILE --parts N --seconds S     parts of a recorded trace, as tenants

Each load is run twice. The mean and p95 TTFT in cells are shown as multiples of those in one cell; so is the
evenness of what tenants received (Jain's index of received by due, max-min by weight), and `moved` is the part of
all service that went to other tenants. `compute` is the part of the workers' time until the last arrival that their
prompts took, at the rated speed of full steps; decode steps take another part, so that the queue of one cell grows
without end from about two thirds on. Tenants share no prefixes. In cells one core simulates about five hundred
requests a second.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from gateway.bench.machine import machine, versions
from policies.simulation.contenders import contender
from policies.simulation.known_blocks import BlockPaths
from policies.simulation.outcome import Outcome, RunResult, summary
from policies.simulation.scenario import Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import TraceRequest
from policies.simulation.trial import TraceSource
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.workloads import WorkloadParameters
from tests.benchmarks.fairness.shares import evenness, received
from tests.benchmarks.report import new_table, number
from tests.benchmarks.trace_parts import trace_of_parts

GATEWAYS_OF_CELL = 10
KV_TOKENS = 1_000_000
LOADS = {"low": 0.55, "high": 6.0, "near": 8.0, "overload": 16.0, "burst": 24.0}
"""Sessions per second and worker, by what the load takes of the fleet; the last two are above what it can do."""
USUAL_LOADS = ("low", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsRun:
    """The figures of one load in so many cells."""

    ttft_ms_mean: float
    ttft_ms_p95: float
    hit_ratio: float
    compute: float
    evenness: float
    moved: float
    """Part of all service that other tenants received than in one cell."""
    cpu_seconds: float


def main() -> None:
    """Simulate, print the table, and write the JSON file if one was asked for."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 150)
    runs: dict[str, dict[int, CellsRun]] = {}
    for name, trace in _traces(options):
        console.print(f"{name}: {len(trace):,} requests in {trace[-1].at:.0f} s", style="dim")
        runs[name] = _of_load(trace, options)
        _print(console, name, runs[name])
    for title, values in (("machine", machine()), ("versions", versions())):
        console.print(f"{title}: {', '.join(f'{k} {v}' for k, v in values.items())}", highlight=False)
    if options.json is not None:
        result: dict[str, Any] = {
            "machine": machine(),
            "versions": versions(),
            "settings": {name: value for name, value in vars(options).items() if name != "json"},
            "runs": {
                f"{name} @ {cells} cells": {"all": run, "tenants": {}}
                for name, of in runs.items()
                for cells, run in of.items()
            },
        }
        options.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


def _traces(options: argparse.Namespace) -> Iterator[tuple[str, list[TraceRequest]]]:
    """Yield each load by its name."""
    if options.trace is not None:
        yield options.trace.stem, trace_of_parts(options.trace, options.parts, options.seconds, options.seed)
        return
    for name in options.load or USUAL_LOADS:
        load = WorkloadParameters(
            requests=options.requests, rate=LOADS[name] * options.workers, tenants=options.tenants
        )
        yield name, TraceSource(workload="mixed", load=load, isolates=True).trace(options.seed)


def _of_load(trace: list[TraceRequest], options: argparse.Namespace) -> dict[int, CellsRun]:
    """Return the figures of one load in one cell, and in as many as the options say."""
    scenario = Scenario(
        workers=options.workers,
        kv_tokens=KV_TOKENS,
        gateways=GATEWAYS_OF_CELL * options.cells,
        window_tokens=RELEASE_WINDOW_TOKENS,
        turns=QueueRule(),
    )
    paths, found = BlockPaths(trace), dict[int, CellsRun]()
    shares_of_one: dict[str, float] = {}
    for cells in (1, options.cells):
        began = time.process_time()
        simulation = Simulation(
            trace, contender("cost", {}), replace(scenario, cells=cells), seed=options.seed, paths=paths
        )
        result = simulation.run()
        outcomes = result.outcomes
        took = time.process_time() - began
        shares = _shares(outcomes, trace[-1].at)
        shares_of_one = shares_of_one or shares
        figures = summary(outcomes)
        found[cells] = CellsRun(
            ttft_ms_mean=figures["ttft_ms_mean"],
            ttft_ms_p95=figures["ttft_ms_p95"],
            hit_ratio=figures["hit_ratio"],
            compute=_compute(result, scenario, trace[-1].at),
            evenness=evenness(outcomes, {}, trace[-1].at),
            moved=_moved(shares_of_one, shares),
            cpu_seconds=took,
        )
    return found


def _compute(result: RunResult, scenario: Scenario, until: float) -> float:
    """Return the part of the workers' time that their prompts took, at the rated speed."""
    return sum(result.computed_tokens) * scenario.times.ms_per_token / (1000 * until * scenario.workers)


def _shares(outcomes: Sequence[Outcome], until: float) -> dict[str, float]:
    """Return each tenant's part of all service that was given until then."""
    got = received(outcomes, until)
    total = sum(got.values())
    return {tenant: units / total for tenant, units in got.items()}


def _moved(before: dict[str, float], after: dict[str, float]) -> float:
    tenants = before.keys() | after.keys()
    return sum(abs(before.get(tenant, 0.0) - after.get(tenant, 0.0)) for tenant in tenants) / 2


def _print(console: Console, name: str, runs: dict[int, CellsRun]) -> None:
    one = runs[1]
    drawn = new_table(
        f"{name}: in cells, and as a multiple of one cell",
        ("cells",),
        (
            "TTFT mean",
            "of one",
            "TTFT p95",
            "of one",
            "hit ratio",
            "compute",
            "evenness",
            "of one",
            "moved",
            "CPU s",
        ),
    )
    for cells, run in runs.items():
        drawn.add_row(
            str(cells),
            number(run.ttft_ms_mean, 1),
            f"{run.ttft_ms_mean / one.ttft_ms_mean:.3f} x",
            number(run.ttft_ms_p95, 1),
            f"{run.ttft_ms_p95 / one.ttft_ms_p95:.3f} x",
            number(run.hit_ratio, 3),
            number(run.compute, 2),
            number(run.evenness, 3),
            f"{run.evenness / one.evenness:.3f} x",
            f"{100 * run.moved:.1f} %",
            number(run.cpu_seconds, 0),
        )
    console.print(drawn)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-cells", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--cells", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2000)
    parser.add_argument("--tenants", type=int, default=50_000)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--load", action="append", choices=LOADS, help="may be repeated; low and high by default"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a recorded trace in place of these loads")
    parser.add_argument("--parts", type=int, default=50, help="tenants that a recorded trace is cut into")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything but the cells")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    if options.quick:
        for name in ("workers", "tenants", "requests"):
            setattr(options, name, getattr(options, name) // 10)
    return options


if __name__ == "__main__":
    main()
