"""`radixgate worker --engine sglang|vllm`: launches the engine, watches it, and registers it."""

import asyncio
import logging
import re
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from gateway.cli.failure import Failure
from gateway.cli.index_access import opened
from gateway.cli.options import is_given, refuse
from gateway.cli.serve import run_loop
from gateway.discovery.registration import Registration
from gateway.discovery.registry import WorkerRegistry
from gateway.settings.sources import load
from gateway.settings.tree import Settings
from gateway.telemetry import logs
from gateway.urls import url_problem
from radix_cache.match import WorkerId
from radix_cache.redis.call import RedisDown
from workers.adapter import WorkerAdapter, WorkerTarget, WorkerUnreachable
from workers.adapters.registry import BUILT_IN
from workers.launch import ENGINES, Launch, LaunchedEngine, Patience, command_line
from workers.worker import Role

log = logging.getLogger(__name__)

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104  # to recognise them
LOOK_SECONDS = 0.5
NOTICE_SECONDS = 2.0
"""Gateways look at the registry every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How the worker is known to gateways. `register`: in which settings' Redis; None: nowhere."""

    id: str | None
    url: str | None
    register: Settings | None
    drain_seconds: float


def settings_of(config: Path | None, assignments: Sequence[str], redis_url: str | None) -> Settings | None:
    """The settings whose Redis it is registered in; None if none are given. Raises SettingsProblem."""
    given = list(assignments)
    if redis_url is not None:
        given.append(f"redis.url={redis_url}")
    if config is None and not given:
        return None
    return load(config, assignments=given, complete=False).settings


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
    role: str,
    bootstrap_port: int,
    python: str | None,
    place: Place,
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
    replay_port = events_port + 1 if events_port else 0
    launch = Launch(
        engine=engine,
        model=model,
        python=python or sys.executable,
        host=host,
        port=free_port(host, port),
        served_model_name=served_model_name,
        page_size=page_size if is_given(context, "page_size") else None,
        events_port=free_port(host, events_port) if events_port is not None else None,
        replay_port=free_port(host, replay_port) if events_port is not None else None,
        role=Role.BOTH if role == "null" else Role(role),
        bootstrap_port=bootstrap_port if is_given(context, "disaggregation_bootstrap_port") else None,
        more=tuple(context.args),
    )
    return run(launch, place, Patience(start=start_seconds, silent=silent_seconds))


def free_port(host: str, port: int) -> int:
    """That port, or a free one for 0."""
    if port:
        return port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.bind((host, 0))
        return int(trial.getsockname()[1])


def run(launch: Launch, place: Place, patience: Patience) -> int:
    """Until SIGTERM or SIGINT. Raises Failure."""
    logs.set_up("info")
    url = place.url or _own_url(launch)
    if problem := url_problem(url):
        raise Failure(f"--advertise-url: {problem}", 2)
    name = launch.served_model_name or Path(launch.model).name
    worker: dict[str, Any] = {
        "id": place.id
        or re.sub(r"[^A-Za-z0-9._-]", "-", f"{name}-{socket.gethostname()}-{launch.port}")[-64:],
        "kind": launch.engine,
        "url": url,
        "role": launch.role.value,
    }
    run_loop(_run(launch, place, patience, worker))
    return 0


async def _run(launch: Launch, place: Place, patience: Patience, worker: dict[str, Any]) -> None:
    """Raises Failure."""
    command = command_line(launch)
    log.info("launching %s", shlex.join(command))
    adapter = BUILT_IN[launch.engine](WorkerTarget(id=WorkerId(worker["id"]), url=_loopback_url(launch)))
    engine = LaunchedEngine(command, adapter.probe, patience=patience)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        stack.callback(adapter.close)
        tasks = [asyncio.create_task(engine.run()), asyncio.create_task(stop.wait())]
        registration = None
        if place.register is not None:
            access = await stack.enter_async_context(opened(place.register))
            registry = WorkerRegistry(access.redis, place.register.redis.prefix)
            registration = Registration(registry, worker, engine.life)
            tasks.append(asyncio.create_task(registration.run()))
        try:
            await _announced(engine, worker, tasks)
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                await tasks[0]
            if registration is not None:
                tasks[2].cancel()
                with suppress(RedisDown):
                    await registration.withdraw()
                await _idle(adapter, place.drain_seconds)
        except OSError as err:
            raise Failure(f"{command[0]} cannot be run: {err.strerror or err}") from err
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _announced(
    engine: LaunchedEngine, worker: dict[str, Any], tasks: Sequence["asyncio.Task[Any]"]
) -> None:
    """Says so once it is up for the first time; comes back then, or when it is to stop."""
    while not engine.life.up and not any(task.done() for task in tasks[:2]):
        await asyncio.wait(tasks[:2], timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if engine.life.up:
        print(f"worker {worker['id']} ready at {worker['url']}", flush=True)


async def _idle(adapter: WorkerAdapter, seconds_max: float) -> None:
    """Waits until it has nothing to do any more, as far as it says, and gateways have had time to notice."""
    await asyncio.sleep(min(seconds_max, NOTICE_SECONDS))
    with suppress(TimeoutError, WorkerUnreachable):
        async with asyncio.timeout(seconds_max):
            # Nobody here is told when a request ends: the engine has to be asked.
            while (load := (await adapter.probe()).load) is not None and load.streams:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)


def _own_url(launch: Launch) -> str:
    if launch.host in ANY_HOST:
        raise Failure(f"--advertise-url is needed with --host {launch.host}: where do gateways reach it?", 2)
    return _url(launch.host, launch.port)


def _loopback_url(launch: Launch) -> str:
    """Where it answers us."""
    return _url(ANY_HOST.get(launch.host, launch.host), launch.port)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
