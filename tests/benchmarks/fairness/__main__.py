"""`make bench-fairness`: isolation between tenants under each queue policy, simulated and with real processes.

    python -m tests.benchmarks.fairness [--seconds N] [--only MIX] [--real-seconds N] [--victim-seconds N]
                                        [--class-seconds N]

`bound` is a lower bound of the victims' TTFT over that alone, for any scheduler in front of the engines
(policies/simulation/least_ttft.py): each victim alone on an idle engine that holds all earlier blocks, in steps of
the engine's own size. `busy` is the greater bound for a scheduler that keeps no worker idle while requests wait
(policies/simulation/least_when_busy.py); ours may pass it, since it keeps a worker open beside a flood. `first` is
no bound: the TTFT of a victim that goes first at its arrival, to the engine that can begin it soonest. It waits
for the step and the prompt under way, which narrower windows would shorten.

Simulated figures are the same on every machine; those of real processes are of this machine. No figure fails the
build.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from gateway.bench.machine import machine, versions
from gateway.bench.parallel_trials import usable_cores
from tests.benchmarks.fairness import classes, real, simulated, victims
from tests.benchmarks.fairness.class_traffic import BATCH, TARGETS
from tests.benchmarks.fairness.mixes import MIXES

WIDTH = 150
SECONDS = 60.0
REAL_SECONDS = 20.0
VICTIM_SECONDS = 60.0
CLASS_SECONDS = 45.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-fairness", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each simulated mix; 0: none")
    parser.add_argument("--only", choices=[*MIXES], help="one mix")
    parser.add_argument("--real-seconds", type=float, default=REAL_SECONDS, help="of each real run; 0: none")
    parser.add_argument(
        "--victim-seconds",
        type=float,
        default=VICTIM_SECONDS,
        help="of each mix with real processes, where they take twice as long; 0: none",
    )
    parser.add_argument("--victim-seed", type=int, default=0, help="of the mixes with real processes")
    parser.add_argument("--gateways", type=int, default=1, help="before the mixes with real processes")
    parser.add_argument(
        "--class-seconds", type=float, default=CLASS_SECONDS, help="of each class run; 0: none"
    )
    parser.add_argument("--processes", type=int, default=usable_cores())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    console = Console(width=WIDTH)
    console.print(machine(), versions(), soft_wrap=True)
    wanted = [given.only] if given.only else [*MIXES]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    missed: dict[str, dict[str, dict[str, Any]]] = {}
    for mix in wanted if given.seconds else ():
        found |= simulated.runs([mix], given.seconds, given.processes)
        console.print(_table(MIXES[mix](1.0).name, found[mix]))
    if given.real_seconds:
        found["real processes"] = asyncio.run(real.runs(given.real_seconds))
        console.print(_table("real gateways and workers: a tenant floods", found["real processes"]))
    beside: dict[str, dict[str, Any]] = {}
    for mix in wanted if given.victim_seconds else ():
        if mix not in victims.MIXES:
            continue
        with tempfile.TemporaryDirectory(prefix="radixgate-victims-") as place:
            run = victims.runs(Path(place), mix, given.victim_seconds, given.victim_seed, given.gateways)
            beside[mix] = asyncio.run(run)
        console.print(_victim_table(f"victims with real processes: {mix}", beside[mix]))
    for batch in BATCH if given.class_seconds else ():
        title = f"all classes beside {batch}"
        of_classes = asyncio.run(classes.runs(given.class_seconds, batch))
        console.print(_class_table(title, of_classes))
        missed[title] = of_classes
    if given.json:
        runs = {f"{policy} @ {mix}": figures for mix, of in found.items() for policy, figures in of.items()}
        settings = {"seconds": given.seconds, "real_seconds": given.real_seconds}
        result = {
            "machine": machine(),
            "versions": versions(),
            "settings": settings,
            "runs": runs,
            "classes": missed,
            "victims": beside,
        }
        given.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")


def _table(title: str, runs: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for head in (
        "victims p50",
        "x alone",
        "bound",
        "busy",
        "first",
        "p99",
        "x alone",
        "bound",
        "busy",
        "first",
        "others p50",
        "work/s",
        "x fifo",
        "evenness",
    ):
        table.add_column(head, justify="right")
    for policy, figures in runs.items():
        victims, others, every = figures["tenants"]["victims"], figures["tenants"]["others"], figures["all"]
        table.add_row(
            policy,
            _ms(victims["ttft_ms_p50"]),
            _ratio(victims["ttft_ms_p50_ratio_to_alone"]),
            _ratio(victims.get("bound_p50_ratio_to_alone")),
            _ratio(victims.get("busy_p50_ratio_to_alone")),
            _ms(victims.get("first_ms_p50")),
            _ms(victims["ttft_ms_p99"]),
            _ratio(victims["ttft_ms_p99_ratio_to_alone"]),
            _ratio(victims.get("bound_p99_ratio_to_alone")),
            _ratio(victims.get("busy_p99_ratio_to_alone")),
            _ms(victims.get("first_ms_p99")),
            _ms(others["ttft_ms_p50"]),
            f"{every['units_per_second']:,.0f}",
            _ratio(every["units_per_second_ratio_to_fifo"]),
            f"{every['evenness']:.3f}",
        )
    return table


def _victim_table(title: str, runs: dict[str, dict[str, Any]]) -> Table:
    """Return the victims' TTFT alone and beside the others, by measurement."""
    table = Table(title=title, title_justify="left")
    table.add_column("measured by")
    for head in ("victims", *victims.PERCENTS, "refused"):
        table.add_column(head if isinstance(head, str) else f"p{head}: alone, beside", justify="right")
    for by, figures in runs.items():
        alone, others = figures[victims.ALONE], figures[victims.BESIDE]
        cells = [by, str(alone["requests"])]
        for percent in victims.PERCENTS:
            before, after = alone[f"ttft_ms_p{percent}"], others[f"ttft_ms_p{percent}"]
            cells.append(f"{_ms(before)}, {_ms(after)}: {_ratio(after / before)} x")
        table.add_row(*cells, str(sum(others.get("errors", {}).values())))
    return table


def _class_table(title: str, runs: dict[str, dict[str, Any]]) -> Table:
    """Return the share of requests that were refused or late, and the TTFT, by row and class."""
    table = Table(title=title, title_justify="left")
    table.add_column("row")
    table.add_column("work/s", justify="right")
    for name in TARGETS:
        table.add_column(f"{name} missed", justify="right")
        table.add_column("p50 / p99", justify="right")
    for row, figures in runs.items():
        cells = [row, f"{figures['units_per_second']:,.0f}"]
        for name in TARGETS:
            of = figures.get(name)
            cells.append("-" if of is None else f"{100 * of['missed']:.1f} %")
            cells.append("-" if of is None else f"{_ms(of['ttft_ms_p50'])} / {_ms(of['ttft_ms_p99'])}")
        table.add_row(*cells)
    return table


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
