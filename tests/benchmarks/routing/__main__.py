"""`make bench-routing`: routing policies on public and generated traces, beside what no rule can do better.

    python -m tests.benchmarks.routing [--check] [--quick] [--seeds N] [--only TEXT] [--trace FILE] [--json FILE]

Engines are simulated, so the figures are the same on every machine. With `--check` only a fixed, quick subset is
run (default_check.py), and the exit status is 1 where the default policy is more than 5 % behind the best shipped
rule in mean TTFT or goodput; without it, no figure fails the build. Beside its figures each row has its mean TTFT
over that of one cache shared by all workers (`pooled`), and over that of the best rule.
`--trace` adds tables for a trace outside of this repository, for which nothing here was tuned.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from gateway.bench.machine import machine, versions
from gateway.bench.parallel_trials import mean_by_subject, trial_figures, usable_cores
from gateway.bench.simulation_report import policies_table
from policies.simulation.trial import LIMITS, POOLED, Trial
from tests.benchmarks.routing.default_check import all_rows, checked
from tests.benchmarks.routing.settings import trials

WIDTH = 130


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-routing", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only hold the default to the best rule")
    parser.add_argument("--quick", action="store_true", help="a quarter of each trace")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="tables whose title has this in it")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="one more trace")
    parser.add_argument("--processes", type=int, default=usable_cores())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    console = Console(width=WIDTH)
    console.print(machine(), versions(), soft_wrap=True)
    if given.check:
        sys.exit(_check(console, given.processes))
    asked = [
        trial for trial in trials(given.quick, range(given.seeds), given.trace) if given.only in trial.group
    ]
    runs: dict[str, Any] = {}
    results = _shown(asked, trial_figures(asked, processes=given.processes))
    for group, of in groupby(asked, key=attrgetter("group")):
        of_group = list(of)
        (figures,) = mean_by_subject(of_group, list(islice(results, len(of_group)))).values()
        best_first = dict(sorted(figures.items(), key=lambda item: item[1]["all"]["ttft_ms_mean"]))
        console.print(policies_table(group, best_first, ratios=_ratios(best_first)))
        runs |= {f"{name} @ {group}": each for name, each in best_first.items()}
    if given.json:
        settings = {"quick": given.quick, "seeds": given.seeds}
        result = {"machine": machine(), "versions": versions(), "settings": settings, "runs": runs}
        given.json.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")


def _check(console: Console, processes: int) -> int:
    """Print what the default policy is behind in on each row of the fixed subset; return the exit status."""
    rows, behind = all_rows(), 0
    with ProcessPoolExecutor(processes) as pool:
        for (name, queued), found in zip(rows, pool.map(checked, rows), strict=True):
            console.print(*(found or [f"{name}, {'queued' if queued else 'sent at once'}: held"]), sep="\n")
            behind += len(found)
    return 1 if behind else 0


def _ratios(figures: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the mean TTFT of each row over that of `pooled` and that of the best rule, queued or not."""
    ttft = {name: each["all"]["ttft_ms_mean"] for name, each in figures.items()}
    best = min(ms for name, ms in ttft.items() if name not in LIMITS)
    ratios = {"/ best": {name: ms / best for name, ms in ttft.items()}}
    if POOLED in ttft:
        ratios["/ pooled"] = {name: ms / ttft[POOLED] for name, ms in ttft.items()}
    return ratios


def _shown(trials: Sequence[Trial], results: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the figures of all trials; write a line of progress for each to the standard error."""
    for number, (trial, result) in enumerate(zip(trials, results, strict=True), start=1):
        ms = result["all"]["ttft_ms_mean"]
        print(
            f"{number} of {len(trials)}: {trial.group}: {trial.label} {ms:.0f} ms",
            file=sys.stderr,
            flush=True,
        )
        yield result


if __name__ == "__main__":
    main()
