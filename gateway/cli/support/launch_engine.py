"""`radixgate worker --engine sglang|vllm`: launches the engine, restarts it when it dies, and registers it."""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.event_loop import run_loop
from gateway.cli.support.free_ports import free_ports
from gateway.cli.support.options import is_given, refuse_options
from gateway.cli.support.published_ports import choose_ports
from gateway.cli.support.register_options import ANY_ADDRESS, RegisterOptions
from gateway.telemetry import logs
from radix_cache.match import WorkerId
from workers.adapter import WorkerAdapter, WorkerFailed, WorkerTarget
from workers.adapters.registry import BUILT_IN
from workers.launching.launch import (
    ENGINES,
    EngineLaunch,
    EngineState,
    EngineTimeouts,
    LaunchedEngine,
    command_line,
    data_parallel_size,
    environment,
    flag_value,
    redacted,
)
from workers.probing.installed_engine import abilities_of
from workers.worker import Role

log = logging.getLogger(__name__)

PROBE_INTERVAL_SECONDS = 0.5
IDLE_PROBES = 3
"""Probes in a row that must report no load: vLLM's load is read with every third probe only."""
NOTICE_SECONDS = 2.0
"""Time for gateways to notice that the worker left the registry, which they read every second."""


def launch_engine(
    context: typer.Context,
    *,
    launch_options: Sequence[str],
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
    registration: RegisterOptions | None,
    drain_seconds: float,
    start_seconds: float,
    silent_seconds: float,
) -> int:
    """Launch an engine with the options of `radixgate worker` and return the exit code when it has stopped.

    Args:
        context: the command's context; words after `--` are the engine's own flags.
        launch_options: names of the options that apply to a launched engine; the others are refused.
        engine: `sglang` or `vllm`.
        model: the model as the engine takes it.
        host: address at which the engine serves HTTP.
        port: port of the engine; 0 takes a free one.
        served_model_name: name of the model in requests; None: the engine's default.
        page_size: tokens of a KV page.
        events_port: first port for KV events, 0 for free ones; None publishes none.
        load_feed: whether the engine publishes its load; None: unless `host` is a loopback address.
        role: `null`, `prefill` or `decode`.
        bootstrap_port: port of a prefill worker for KV transfer.
        python: the interpreter that has the engine; None: the one that runs this command.
        registration: how to register the worker in Redis; None: not at all.
        drain_seconds: longest wait for running requests after SIGTERM.
        start_seconds: time within which the engine has to answer first.
        silent_seconds: silence after which the engine is restarted.

    Raises:
        CommandError: an option is wrong, or the engine cannot be started.
    """
    if engine not in ENGINES:
        raise CommandError(
            f"--engine: there is no engine {engine!r}; there are embedded, {', '.join(ENGINES)}", 2
        )
    others = (name for name in context.params if name not in launch_options)
    refuse_options(
        context, others, "an option of the embedded engine; flags of a launched engine go after --"
    )
    if role not in ("null", "prefill", "decode"):
        raise CommandError(f"--disaggregation-mode: {role!r} is not one of null, prefill, decode", 2)
    api_key = flag_value(context.args, "--api-key", "--api_key")
    if api_key is not None and registration is not None:
        raise CommandError("--api-key: gateways that find a worker by its registration have no key for it", 2)
    logs.configure_logging("info")
    python = python or sys.executable
    ports = None
    if events_port is not None:
        ports = choose_ports(
            engine,
            host,
            events_port,
            ranks=data_parallel_size(context.args),
            load_feed=load_feed,
            can=abilities_of(engine, python),
        )
    launch = EngineLaunch(
        engine=engine,
        model=model,
        python=python,
        host=host,
        port=port or free_ports(host),
        served_model_name=served_model_name,
        page_size=page_size if is_given(context, "page_size") else None,
        events_port=ports.events_port if ports is not None else None,
        replay_port=ports.replay_port if ports is not None else None,
        events_at=ports.events_at if ports is not None else None,
        loads_port=ports.loads_port if ports is not None else None,
        role=Role.BOTH if role == "null" else Role(role),
        bootstrap_port=bootstrap_port if is_given(context, "disaggregation_bootstrap_port") else None,
        more=tuple(context.args),
    )
    timeouts = EngineTimeouts(start_seconds=start_seconds, silent_seconds=silent_seconds)
    run_loop(_run(launch, api_key, timeouts, registration, drain_seconds))
    return 0


async def _run(
    launch: EngineLaunch,
    api_key: str | None,
    timeouts: EngineTimeouts,
    registration: RegisterOptions | None,
    drain_seconds: float,
) -> None:
    """Run the engine until a signal arrives or it fails for good; `api_key` is the key that the engine requires."""
    command, url = command_line(launch), _url(launch.host, launch.port)
    log.info("launching %s", redacted(command))
    answers_at = _url(ANY_ADDRESS.get(launch.host, launch.host), launch.port)
    adapter = BUILT_IN[launch.engine](WorkerTarget(id=WorkerId("launched"), url=answers_at, api_key=api_key))
    engine = LaunchedEngine(command, adapter.probe, timeouts=timeouts, environment=environment(launch))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running = asyncio.create_task(engine.run())
    registering = asyncio.create_task(_register_while_up(engine.state, url, launch, registration))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        # The worker leaves the registry first, so that gateways send it no new requests.
        registering.cancel()
        await asyncio.gather(registering, return_exceptions=True)
        if registration is not None:
            await _wait_until_idle(adapter, engine.state, drain_seconds)
    except OSError as err:
        raise CommandError(f"{command[0]} cannot be run: {err.strerror or err}") from err
    finally:
        for task in (running, registering, stopping):
            task.cancel()
        await asyncio.gather(running, registering, stopping, return_exceptions=True)
        adapter.close()


async def _register_while_up(
    state: EngineState, url: str, launch: EngineLaunch, registration: RegisterOptions | None
) -> None:
    """Print each time that the engine comes up, and keep the worker registered for as long as the engine is up."""
    while True:
        await state.wait_until(up=True)
        print(f"worker ready at {url}", flush=True)
        if registration is None:
            await state.wait_until(up=False)
            continue
        async with registration.open(launch.engine, url, launch.role.value):
            await state.wait_until(up=False)


async def _wait_until_idle(
    adapter: WorkerAdapter,
    state: EngineState,
    seconds_max: float,
    *,
    notice_seconds: float = NOTICE_SECONDS,
    probe_seconds: float = PROBE_INTERVAL_SECONDS,
) -> None:
    """Wait until gateways had time to notice the drain and the engine reports no running requests."""
    await asyncio.sleep(min(seconds_max, notice_seconds))
    idle_probes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_max):
            # The engine publishes no event at a request's end, so it is probed.
            while state.up and idle_probes < IDLE_PROBES:
                try:
                    load = (await adapter.probe()).load
                except WorkerFailed:
                    idle_probes = 0  # Too busy to answer: it still works on requests.
                else:
                    if load is None:
                        return
                    idle_probes = 0 if load.streams else idle_probes + 1
                await asyncio.sleep(probe_seconds)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
