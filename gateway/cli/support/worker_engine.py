"""`radixgate worker --engine sglang|vllm`: launches the engine, watches it, and registers it."""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import typer

from gateway.cli.commands.serve import run_loop
from gateway.cli.support.failure import Failure
from gateway.cli.support.free_ports import free_ports
from gateway.cli.support.options import is_given, refuse
from gateway.cli.support.published import published
from gateway.cli.support.registering import EVERYWHERE, Registering
from gateway.telemetry import logs
from radix_cache.match import WorkerId
from workers.adapter import WorkerAdapter, WorkerTarget, WorkerUnreachable
from workers.adapters.registry import BUILT_IN
from workers.launching.launch import (
    ENGINES,
    EngineLife,
    Launch,
    LaunchedEngine,
    Patience,
    command_line,
    environment,
    ranks,
    shown,
    value_of,
)
from workers.probing.installed_engine import abilities_of
from workers.worker import Role

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
IDLE_LOOKS = 3
"""vLLM's load is read with every third probe: only so many that say the same are of now."""
NOTICE_SECONDS = 2.0
"""Gateways look at the registry every second."""


def launched(
    context: typer.Context,
    *,
    own: Sequence[str],
    engine: str,
    model: str,
    host: str,
    port: int,
    served_model_name: str | None,
    page_size: int,
    events_port: int | None,
    load_feed: bool | None,
    role: str,
    bootstrap_port: int,
    python: str | None,
    registering: Registering | None,
    drain_seconds: float,
    start_seconds: float,
    silent_seconds: float,
) -> int:
    """The options of `radixgate worker`; those that are not `own` are the embedded engine's. Raises Failure."""
    if engine not in ENGINES:
        raise Failure(f"--engine: there is no engine {engine!r}; there are embedded, {', '.join(ENGINES)}", 2)
    others = (name for name in context.params if name not in own)
    refuse(context, others, "the embedded engine's; what the launched one has goes after --")
    if role not in ("null", "prefill", "decode"):
        raise Failure(f"--disaggregation-mode: {role!r} is none of null, prefill, decode", 2)
    api_key = value_of(context.args, "--api-key", "--api_key")
    if api_key is not None and registering is not None:
        raise Failure("--api-key: gateways that find a worker by its registration have no key for it", 2)
    logs.set_up("info")
    python = python or sys.executable
    at = None
    if events_port is not None:
        at = published(
            engine,
            host,
            events_port,
            ranks=ranks(context.args),
            load_feed=load_feed,
            can=abilities_of(engine, python),
        )
    launch = Launch(
        engine=engine,
        model=model,
        python=python,
        host=host,
        port=port or free_ports(host),
        served_model_name=served_model_name,
        page_size=page_size if is_given(context, "page_size") else None,
        events_port=at.events_port if at is not None else None,
        replay_port=at.replay_port if at is not None else None,
        events_at=at.events_at if at is not None else None,
        loads_port=at.loads_port if at is not None else None,
        role=Role.BOTH if role == "null" else Role(role),
        bootstrap_port=bootstrap_port if is_given(context, "disaggregation_bootstrap_port") else None,
        more=tuple(context.args),
    )
    patience = Patience(start=start_seconds, silent=silent_seconds)
    run_loop(_run(launch, api_key, patience, registering, drain_seconds))
    return 0


async def _run(
    launch: Launch,
    api_key: str | None,
    patience: Patience,
    registering: Registering | None,
    drain_seconds: float,
) -> None:
    """`api_key`: what the engine asks for. Raises Failure."""
    command, url = command_line(launch), _url(launch.host, launch.port)
    log.info("launching %s", shown(command))
    answers_at = _url(EVERYWHERE.get(launch.host, launch.host), launch.port)
    adapter = BUILT_IN[launch.engine](WorkerTarget(id=WorkerId("launched"), url=answers_at, api_key=api_key))
    engine = LaunchedEngine(command, adapter.probe, patience=patience, environment=environment(launch))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = asyncio.create_task(engine.run())
    told = asyncio.create_task(_told(engine.life, url, launch, registering))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        # It leaves the registry first: gateways send it nothing new then.
        told.cancel()
        await asyncio.gather(told, return_exceptions=True)
        if registering is not None:
            await _idle(adapter, engine.life, drain_seconds)
    except OSError as err:
        raise Failure(f"{command[0]} cannot be run: {err.strerror or err}") from err
    finally:
        for task in (running, told, stopping):
            task.cancel()
        await asyncio.gather(running, told, stopping, return_exceptions=True)
        adapter.close()


async def _told(life: EngineLife, url: str, launch: Launch, registering: Registering | None) -> None:
    """Says when it is up, and keeps it registered for as long as it is."""
    while True:
        await life.until(up=True)
        print(f"worker ready at {url}", flush=True)
        if registering is None:
            await life.until(up=False)
            continue
        async with registering.as_worker(launch.engine, url, launch.role.value):
            await life.until(up=False)


async def _idle(
    adapter: WorkerAdapter,
    life: EngineLife,
    seconds_max: float,
    *,
    notice: float = NOTICE_SECONDS,
    look: float = LOOK_SECONDS,
) -> None:
    """Waits until it has nothing to do any more, as far as it says, and gateways have had time to notice."""
    await asyncio.sleep(min(seconds_max, notice))
    idle = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_max):
            # Nobody here is told when a request ends: the engine has to be asked.
            while life.up and idle < IDLE_LOOKS:
                try:
                    load = (await adapter.probe()).load
                except WorkerUnreachable:
                    idle = 0  # Too busy to say so: what it works on is let finish all the more.
                else:
                    if load is None:
                        return
                    idle = 0 if load.streams else idle + 1
                await asyncio.sleep(look)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
