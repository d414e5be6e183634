"""`radixgate simulate`: compares routing policies on a trace with simulated engines; no server is run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from gateway.bench.parallel_trials import mean_by_subject, run_trials, usable_cores
from gateway.bench.simulation_report import (
    PlotError,
    classes_table,
    plot_policies,
    policies_table,
    tenants_table,
)
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.output_files import check_writable
from gateway.cli.support.progress_bar import progress_bar
from gateway.cli.support.result_file import JsonFile, write_results
from policies.registry import PolicyError
from policies.routing.checked_policy import PolicyContractBroken
from policies.service_class import BATCH, CHAT, CODE, VOICE
from policies.simulation.contenders import contender_names
from policies.simulation.engines.step_time import CalibrationInvalid, StepTime, read_step_time
from policies.simulation.scenario import FleetAction, Scenario
from policies.simulation.trace import BLOCK_TOKENS, TraceInvalid
from policies.simulation.trial import LIMITS, TraceSource, Trial, policy_of, restarts
from policies.simulation.turns.queue_rule import RELEASE_WINDOW_TOKENS, QueueRule
from policies.simulation.waiting_orders import ORDERS
from policies.simulation.workloads import WORKLOADS, WorkloadParameters

DEFAULT_POLICIES = ("cost", "product", "session", "chwbl", "least_work", "p2c", "round_robin")
ENDINGS = (".png", ".svg", ".pdf")
RESTARTS_MAX = 100_000
TABLE_COLUMNS = 110
"""Width of tables that are printed into a file or a pipe, which have no width of their own."""


def simulate(
    trace: Annotated[
        Path | None, typer.Argument(help="Trace file in Mooncake's format (JSON lines).", show_default=False)
    ] = None,
    workload: Annotated[
        str, typer.Option(help=f"Without a trace: workload to generate ({', '.join(WORKLOADS)}).")
    ] = "mixed",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to run, as NAME or NAME:OPTION=VALUE,... May be repeated.",
            show_default=" ".join(DEFAULT_POLICIES),
        ),
    ] = None,
    all_policies: Annotated[
        bool, typer.Option("--all", help="Run all policies, including those of other gateways.")
    ] = False,
    limits: Annotated[
        bool,
        typer.Option(
            "--limits",
            help="Also run `pooled`, one cache that all workers share, and `alone`, the least possible TTFT.",
        ),
    ] = False,
    workers: Annotated[int, typer.Option(help="Number of engines.", min=1, max=100_000)] = 4,
    kv_tokens: Annotated[
        int, typer.Option(help="KV cache of each engine in tokens.", min=BLOCK_TOKENS, max=10**9)
    ] = 1_000_000,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="JSON or YAML file with step times of the engine.", show_default="8B class, one GPU"
        ),
    ] = None,
    speeds: Annotated[
        str,
        typer.Option(
            help="Speed of each engine relative to its step times, such as 0.5,1,1; the last applies to the rest.",
            show_default="all alike",
        ),
    ] = "",
    speeds_rated: Annotated[
        bool,
        typer.Option(
            "--speeds-rated/--speeds-learnt",
            help="Whether gateways have unequal speeds from the settings, or learn them from answers alone.",
        ),
    ] = True,
    order: Annotated[str, typer.Option(help=f"Order of each engine's queue: {', '.join(ORDERS)}.")] = "fcfs",
    speed: Annotated[
        float,
        typer.Option(help="Factor by which requests are sent faster than recorded.", min=0.001, max=10_000),
    ] = 1.0,
    requests: Annotated[
        int,
        typer.Option(help="Number of requests; 0: all of a trace, 5,000 of a workload.", min=0, max=10**7),
    ] = 0,
    rate: Annotated[
        float, typer.Option(help="Sessions per second of a generated workload.", min=0.001, max=100_000)
    ] = 2.0,
    tenants: Annotated[
        int, typer.Option(help="Number of tenants of a generated workload.", min=1, max=100_000)
    ] = 32,
    skew: Annotated[
        float,
        typer.Option(
            help="Zipf exponent of the tenants' shares of a generated workload; 0: even.", min=0, max=5
        ),
    ] = 1.0,
    gateways: Annotated[
        list[int] | None,
        typer.Option(
            help="Number of gateways. May be repeated, to compare.",
            show_default="one in each cell",
            min=1,
            max=100_000,
        ),
    ] = None,
    cells: Annotated[
        int,
        typer.Option(
            help="Number of cells, with the same number of gateways in each. A tenant belongs to one of them, and "
            "cells get each other's loads late, as gateways do. Implies --queue.",
            min=1,
            max=1000,
        ),
    ] = 1,
    sync_ms: Annotated[
        float,
        typer.Option(
            help="Delay with which gateways learn the loads of other gateways; -1: never.", min=-1, max=1e6
        ),
    ] = 0.0,
    events_ms: Annotated[float, typer.Option(help="Delay of KV events.", min=0, max=1e6)] = 0.0,
    event_loss: Annotated[float, typer.Option(help="Share of KV events that are lost.", min=0, max=1)] = 0.0,
    window_tokens: Annotated[
        int,
        typer.Option(
            help="Release window of a worker; 0: requests never wait in the gateway.", min=0, max=10**9
        ),
    ] = 0,
    waiting_order: Annotated[
        str, typer.Option(help=f"Order of requests that wait in the gateway: {', '.join(ORDERS)}.")
    ] = "hrrn",
    queue: Annotated[
        bool,
        typer.Option(
            "--queue",
            help="Let requests wait as in a gateway by default: `sfq`, `hrrn`, hold 0, a release window of "
            f"{RELEASE_WINDOW_TOKENS} tokens.",
        ),
    ] = False,
    classes: Annotated[
        bool,
        typer.Option(
            "--classes",
            help="Apply the targets of service classes to requests (field `service_class` of the trace), as a "
            "gateway does by default. Implies --queue.",
        ),
    ] = False,
    isolate_tenants: Annotated[
        bool,
        typer.Option("--isolate-tenants", help="Isolate the tenants: they share no cached blocks."),
    ] = False,
    restart_every: Annotated[
        float, typer.Option(help="Seconds between kills of a worker; 0: no kills.", min=0, max=1e6)
    ] = 0.0,
    restart_seconds: Annotated[
        float, typer.Option(help="Seconds until a killed worker is available again.", min=0, max=1e6)
    ] = 30.0,
    seeds: Annotated[
        int,
        typer.Option(
            help="Number of runs of each policy with different seeds, which are averaged.", min=1, max=1000
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="First seed.", min=0, max=2**31)] = 0,
    processes: Annotated[
        int,
        typer.Option(help="Number of processes for the simulation; 0: one for each core.", min=0, max=1024),
    ] = 0,
    json_file: JsonFile = None,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot", help="Draw plots of the results into this file: png, svg or pdf.", show_default=False
        ),
    ] = None,
) -> None:
    """Compare routing policies by simulation.

    A trace is run on simulated engines; the table shows hit ratio, TTFT, TPOT, goodput and imbalance.
    """
    if plot_file is not None and plot_file.suffix not in ENDINGS:
        raise CommandError(f"--plot: {plot_file} must end in {', '.join(ENDINGS)}", 2)
    check_writable("--json", json_file)
    check_writable("--plot", plot_file, has_plots=True)
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_COLUMNS)
    _one_of("--workload", workload, tuple(WORKLOADS))
    source = TraceSource(
        path=trace,
        workload=workload,
        load=WorkloadParameters(requests=requests or 5000, rate=rate, tenants=tenants, skew=skew),
        speed=speed,
        requests_max=requests or None,
        isolates=isolate_tenants,
    )
    queue = queue or classes or cells > 1
    _check_cells(cells, gateways or [cells], sync_ms)
    subjects = [
        *(contender_names() if all_policies else policy or DEFAULT_POLICIES),
        *(LIMITS if limits else ()),
    ]
    try:
        for subject in subjects:
            if subject not in LIMITS:
                policy_of(subject)
        first = source.trace(seed)
        if restart_every and first[-1].at / restart_every > RESTARTS_MAX:
            raise CommandError(
                f"--restart-every: {restart_every:g} s is more than {RESTARTS_MAX:,} restarts", 2
            )
        scenario = Scenario(
            workers=workers,
            kv_tokens=kv_tokens,
            times=read_step_time(calibration) if calibration else StepTime(),
            speeds=_speeds(speeds, workers),
            speeds_rated=speeds_rated,
            order=_one_of("--order", order, tuple(ORDERS)),
            cells=cells,
            sync_seconds=None if sync_ms < 0 else sync_ms / 1000,
            event_seconds=events_ms / 1000,
            event_loss=event_loss,
            window_tokens=window_tokens or (RELEASE_WINDOW_TOKENS if queue else None),
            turns=QueueRule() if queue else None,
            classes={each.name: each for each in (VOICE, CODE, CHAT, BATCH)} if classes else {},
            waiting_order=_one_of("--waiting-order", waiting_order, tuple(ORDERS)),
            changes=restarts(
                workers, every_seconds=restart_every, for_seconds=restart_seconds, until=first[-1].at
            )
            if restart_every
            else (),
        )
        trials = _trials(subjects, source, scenario, gateways or [cells], range(seed, seed + seeds))
        results = _run_with_progress(console, trials, processes or usable_cores(), len(first))
    except (PolicyError, TraceInvalid, CalibrationInvalid) as err:
        raise CommandError(f"simulate: {err}", 2) from err
    except PolicyContractBroken as err:
        raise CommandError(f"simulate: {err}") from err
    groups = mean_by_subject(trials, results)
    title = f"{len(first):,} requests on {workers:,} workers of {kv_tokens:,} tokens"
    _print_tables(console, title, groups, classes)
    if json_file is not None:
        _write(json_file, source, scenario, len(first), range(seed, seed + seeds), groups)
        console.print(f"written to {json_file}", soft_wrap=True)
    if plot_file is not None:
        try:
            plot_policies(plot_file, groups)
        except PlotError as err:
            raise CommandError(f"--plot: {err}") from err
        console.print(f"drawn in {plot_file}", soft_wrap=True)


def _print_tables(
    console: Console, title: str, groups: Mapping[str, Mapping[str, Any]], classes: bool
) -> None:
    """Print the figures of each group of runs: of all policies, of tenants, with `classes` of service classes."""
    for group, runs in groups.items():
        console.print(policies_table(f"{title}, {group}", runs))
        leading = next(iter(runs))
        if runs[leading]["tenants"]:
            console.print(tenants_table(leading, runs[leading]))
        if classes:
            console.print(classes_table(runs))


def _trials(
    subjects: Sequence[str],
    source: TraceSource,
    scenario: Scenario,
    gateways: Sequence[int],
    seeds: Iterable[int],
) -> list[Trial]:
    """Return the trials to run. Upper bounds have no gateways to count: they are run once."""
    return [
        Trial(
            subject=subject,
            source=source,
            scenario=replace(scenario, gateways=count),
            seed=seed,
            group=f"{count} gateway{'s' if count > 1 else ''}"
            + (f" in {scenario.cells} cells" if scenario.cells > 1 else ""),
        )
        for count in gateways
        for subject in subjects
        for seed in seeds
        if subject not in LIMITS or count == gateways[0]
    ]


def _run_with_progress(
    console: Console, trials: Sequence[Trial], processes: int, requests: int
) -> list[dict[str, Any]]:
    """Run the trials under a progress bar, which counts requests."""
    with progress_bar(console) as shown:
        task = shown.add_task("requests", total=len(trials) * requests)
        return run_trials(trials, processes=processes, progress=lambda more: shown.advance(task, more))


def _check_cells(cells: int, gateways: Sequence[int], sync_ms: float) -> None:
    """Raise CommandError for cells that cannot be simulated."""
    if cells == 1:
        return
    if any(count % cells for count in gateways):
        raise CommandError(f"--gateways: has to be a multiple of the {cells:,} cells", 2)
    if sync_ms:
        raise CommandError("--sync-ms: gateways of one cell know each other's loads at once", 2)


def _speeds(text: str, workers: int) -> tuple[float, ...]:
    """Return the speeds in a comma-separated list. Raises CommandError."""
    try:
        speeds = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise CommandError(f"--speeds: {text!r} is not a list of numbers such as 0.5,1", 2) from None
    if len(speeds) > workers or not all(0.01 <= speed <= 100 for speed in speeds):
        raise CommandError("--speeds: one number from 0.01 to 100 for each worker at most", 2)
    return speeds


def _one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise CommandError(f"{option}: {value!r} is not one of {', '.join(known)}", 2)
    return value


def _write(
    file: Path,
    source: TraceSource,
    scenario: Scenario,
    requests: int,
    seeds: range,
    groups: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the result file, in the shape that all result files have. Raises CommandError.

    With several numbers of gateways, runs are named `policy @ gateways`. The settings in the file are all that is
    needed to repeat the run.
    """
    load = source.load
    settings = {
        "trace": source.path.name if source.path else source.workload,
        "speed": source.speed,
        "requests": requests,
        **({} if source.path else {"rate": load.rate, "tenants": load.tenants, "skew": load.skew}),
        "seed": seeds.start,
        "seeds": len(seeds),
        "workers": scenario.workers,
        "kv_tokens": scenario.kv_tokens,
        "speeds": scenario.speeds,
        "speeds_rated": scenario.speeds_rated,
        "order": scenario.order,
        "waiting_order": scenario.waiting_order,
        "window_tokens": scenario.window_tokens,
        "queue": scenario.turns is not None,
        "classes": sorted(scenario.classes),
        "isolate_tenants": source.isolates,
        "cells": scenario.cells,
        "sync_seconds": scenario.sync_seconds,
        "event_seconds": scenario.event_seconds,
        "event_loss": scenario.event_loss,
        "restarts": sum(change.what is FleetAction.KILL for change in scenario.changes),
        "step_time": msgspec.to_builtins(scenario.times),
    }
    runs = {
        name if len(groups) == 1 else f"{name} @ {group}": figures
        for group, by_policy in groups.items()
        for name, figures in by_policy.items()
    }
    write_results(file, settings, runs)
