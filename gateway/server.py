"""Opens the listeners, serves until told to stop, and stops without losing a stream."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from gateway.app import Gateway, running
from gateway.settings import Settings
from gateway.web.admin import admin_app
from gateway.web.handlers import tenant_app

log = logging.getLogger(__name__)

KEEPALIVE_SECONDS = 75.0
BACKLOG = 1024
HEADER_BYTES_MAX = 16 * 1024
READ_BUFFER_BYTES = 256 * 1024
ADMIN_SECONDS_MAX = 1.0


class CannotListen(Exception):
    """An address is taken or not ours; one line says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A gateway that answers. `tenants`, `admin`: where, as URLs (or `unix:PATH`)."""

    gateway: Gateway
    tenants: str
    admin: str
    runner: web.AppRunner


async def run(settings: Settings, ready: Callable[[Serving], None] = lambda _: None) -> None:
    """Serves until SIGTERM or SIGINT, and drains; a second signal ends it at once.

    Raises SettingsProblem, ValkeyFailed and CannotListen before it serves, nothing afterwards.
    """
    stop, at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (at_once if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    async with serving(settings) as here:
        _spare_the_collector()
        log.info("serving at %s, operators at %s", here.tenants, here.admin)
        ready(here)
        await stop.wait()
        await _drain(here, at_once)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Serving]:
    """A gateway with its listeners open."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running(settings))
        bounds = settings.requests
        tenants = _runner(
            tenant_app(
                gateway.services,
                gateway.doors,
                body_bytes_max=bounds.body_bytes_max,
                body_seconds_max=bounds.body_seconds_max,
                # A unix socket is out of a browser's reach, and its clients name hosts as they like.
                local_names_only=not settings.tenants and settings.listen.unix_socket is None,
            ),
            seconds_max=settings.drain.seconds,
        )
        admin = _runner(admin_app(gateway), seconds_max=ADMIN_SECONDS_MAX)
        for runner in (tenants, admin):
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
        listen = settings.listen
        yield Serving(
            gateway=gateway,
            tenants=await _open(tenants, listen.host, listen.port, listen.unix_socket),
            admin=await _open(admin, settings.admin.host, settings.admin.port),
            runner=tenants,
        )


def _spare_the_collector() -> None:
    """What stands now stays and need not be looked at; requests leave few cycles, so looking seldom is enough."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _drain(here: Serving, at_once: asyncio.Event) -> None:
    """Not ready but serving for the notice; then no new requests, and the running ones may end."""
    drain = here.gateway.settings.drain
    log.info("stopping: notice of %g s, then %g s for running requests", drain.notice_seconds, drain.seconds)
    here.gateway.doors.ready = False
    await _unless(at_once, asyncio.sleep(drain.notice_seconds))
    here.gateway.close_doors()
    await _unless(at_once, here.runner.cleanup())
    here.gateway.doors.clear()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, or abandons it when the event comes first."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    for unfinished in (task, waiting):
        unfinished.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)


def _runner(app: web.Application, *, seconds_max: float) -> web.AppRunner:
    """`handler_cancellation`: a client that leaves cancels its handler, and so frees its quota and its GPU.

    `auto_decompress`: a few kilobytes would become as many gigabytes, before anybody has asked who sends them.
    """
    return web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,
        shutdown_timeout=seconds_max,
        keepalive_timeout=KEEPALIVE_SECONDS,
        access_log=None,
        max_field_size=HEADER_BYTES_MAX,
        read_bufsize=READ_BUFFER_BYTES,
    )


async def _open(runner: web.AppRunner, host: str, port: int, unix_socket: str | None = None) -> str:
    """Listens, and says where. Raises CannotListen."""
    where = unix_socket or f"{host}:{port}"
    try:
        if unix_socket is not None:
            await web.UnixSite(runner, unix_socket, backlog=BACKLOG).start()
            return f"unix:{unix_socket}"
        await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
    except OSError as err:
        raise CannotListen(f"cannot listen on {where}: {os.strerror(err.errno or 0)}") from err
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{runner.addresses[0][1]}"
