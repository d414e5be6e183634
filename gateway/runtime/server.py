"""Opens the listeners, serves until told to stop, and stops without losing a stream."""

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.app import Gateway, running
from gateway.batches.batch_claimer import BatchClaimer
from gateway.batches.setup import batch_claimer_of, row_bytes_max
from gateway.process.multiprocess import GatewayProcess
from gateway.runtime.certificates import ServerTls
from gateway.runtime.reload import Reloader, registered_for_reload
from gateway.settings.listeners import AdminSettings, ListenSettings
from gateway.settings.tree import Settings
from gateway.web.admin_app import admin_app, admin_failure
from gateway.web.client_address import finder
from gateway.web.error_response import error_response
from gateway.web.middleware.connection_limits import Connections
from gateway.web.middleware.cors import Browsers
from gateway.web.middleware.protocol_errors import Failure, speaking
from gateway.web.stored.background_responses import Runs
from gateway.web.stored.object_stores import ObjectStores
from gateway.web.tenant_app import tenant_app

log = logging.getLogger(__name__)

KEEPALIVE_SECONDS = 75.0
BACKLOG = 1024
DESCRIPTORS = 65536
HEADER_BYTES_MAX = 16 * 1024
READ_BUFFER_BYTES = 256 * 1024
ADMIN_SECONDS_MAX = 1.0

SWITCH_SECONDS = 0.0002
"""How long a thread that works on a long prompt keeps the interpreter when the loop asks for it. The loop asks at
every chunk of every stream, so that Python's own 5 ms would be tens of milliseconds for one of many streams."""


class ListenAddressUnavailable(Exception):
    """An address is taken or not ours; one line says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingGateway:
    """A gateway that answers. `tenants`, `admin`: where, as URLs (or `unix:PATH`). `certificates`: of both."""

    gateway: Gateway
    tenants: str
    admin: str
    runner: web.AppRunner
    certificates: tuple[ServerTls, ...] = ()
    batches: BatchClaimer | None
    runs: Runs | None


async def run(
    settings: Settings,
    ready: Callable[[ServingGateway], None] = lambda _: None,
    one: GatewayProcess | None = None,
    read: Callable[[], Settings] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, and drains; a second signal ends it at once.

    SIGINT comes from a person at a keyboard: no balancer is given notice, and with nothing inside it ends at once.

    Raises SettingsProblem, ValkeyFailed and ListenAddressUnavailable before it serves, nothing afterwards.
    """
    stop: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    at_once = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.done():
            at_once.set()
        else:
            stop.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    _raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    async with serving(settings, one) as here:
        _spare_the_collector()
        log.info("serving at %s, operators at %s", here.tenant_url, here.admin_url)
        reloader = Reloader(here.gateway, here.certificates, read or (lambda: settings))
        here.gateway.supervisor.start("reloads", reloader.run)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.ask)
        with registered_for_reload(Path(settings.state_directory)) if one is None else nullcontext():
            ready(here)
            by_keyboard = await stop is signal.SIGINT
        await _drain(here, at_once, notice_seconds=0.0 if by_keyboard else settings.drain.notice_seconds)


@asynccontextmanager
async def serving(settings: Settings, one: GatewayProcess | None = None) -> AsyncIterator[ServingGateway]:
    """A gateway with its listeners open. `one`: which of several processes it is."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running(settings))
        bounds, records, keeper = settings.requests, gateway.records, batch_claimer_of(gateway)
        if keeper is not None:
            stack.push_async_callback(keeper.close)
            gateway.supervisor.start("batches", keeper.run)
        runs = None
        if records.responses is not None and records.background is not None:
            runs = Runs(records.responses, records.background)
            stack.push_async_callback(runs.close)
        listen, directory = settings.listen, gateway.services.entrance.directory
        tenants = _runner(
            tenant_app(
                gateway.services,
                gateway.drain_state,
                body_bytes_max=bounds.body_bytes_max,
                body_seconds_max=bounds.body_seconds_max,
                # A unix socket is out of a browser's reach, and its clients name hosts as they like.
                local_names_only=lambda: listen.unix_socket is None and not directory.asks_for_keys,
                browsers=(
                    Browsers(listen.origins, lambda: directory.asks_for_keys) if listen.origins else None
                ),
                access_log=gateway.access_log,
                find_address=finder(listen.trusted_proxies),
                kept=ObjectStores(
                    responses=records.responses,
                    runs=runs,
                    shelf=records.shelf,
                    batches=records.batches,
                    unfinished_max=settings.batches.tenant_unfinished_max,
                    rows_max=settings.batches.rows_max,
                    row_bytes_max=row_bytes_max(settings),
                    wake=keeper.wake if keeper is not None else lambda: None,
                ),
            ),
            error_response,
            seconds_max=settings.drain.seconds,
        )
        admin = _runner(admin_app(gateway, one), admin_failure, seconds_max=ADMIN_SECONDS_MAX)
        for runner in (tenants, admin):
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
        certificates = _certificates(settings, gateway)
        if listen.unix_socket is not None:
            url = await _open_socket(tenants, Path(listen.unix_socket), stack)
        else:
            tenants.bound = Connections(listen.connections_per_address_max, listen.trusted_proxies)
            url = await _open(tenants, listen, certificates.get("listen"), together=one is not None)
        yield ServingGateway(
            gateway=gateway,
            tenants=url,
            admin=(
                await _open(admin, settings.admin, certificates.get("admin"))
                if one is None or one.number == 0
                else await _open_socket(admin, one.admin_socket(one.number), stack)
            ),
            runner=tenants,
            certificates=tuple(certificates.values()),
            batches=keeper,
            runs=runs,
        )


def _raise_descriptor_limit() -> None:
    """A stream has two sockets; the usual 1,024 are the limit of a shell, not of a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _spare_the_collector() -> None:
    """What stands now stays and need not be looked at; requests leave few cycles, so looking seldom is enough."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _drain(here: ServingGateway, at_once: asyncio.Event, *, notice_seconds: float) -> None:
    """Not ready but serving for the notice; then no new requests, and the running ones may end."""
    inside = len(here.gateway.drain_state.requests)
    if inside or notice_seconds:
        log.warning(
            "stopping: notice of %g s, then at most %g s for %d running request%s; a second signal ends it at once",
            *(notice_seconds, here.gateway.settings.drain.seconds, inside, "" if inside == 1 else "s"),
        )
    here.gateway.drain_state.ready = False
    await _unless(at_once, asyncio.sleep(notice_seconds))
    here.gateway.stop_accepting()
    await _unless(at_once, _ended(here))
    here.gateway.drain_state.cancel_requests()


async def _ended(here: ServingGateway) -> None:
    """What runs has come to its end: of clients, of batches, in the background."""
    seconds = here.gateway.settings.drain.seconds
    async with asyncio.TaskGroup() as all_of_it:
        all_of_it.create_task(here.runner.cleanup())
        for others in (here.batches, here.runs):
            if others is not None:
                all_of_it.create_task(others.drain(seconds))


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, or abandons it when the event comes first."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    for unfinished in (task, waiting):
        unfinished.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)


class _Runner(web.AppRunner):
    """One whose connections are counted, if that is asked for, and fail in the listener's own shape."""

    bound: Connections | None = None

    def __init__(self, app: web.Application, failure: Failure, **options: Any) -> None:
        super().__init__(app, **options)
        self._taught = speaking(failure)

    @property
    def server(self) -> Any:
        """What makes a protocol for every connection."""
        made = super().server
        if made is None:
            return None

        def new() -> web.RequestHandler:
            return self._taught(made())

        return self.bound.counted(new) if self.bound is not None else new


def _runner(app: web.Application, failure: Failure, *, seconds_max: float) -> _Runner:
    """`handler_cancellation`: a client that leaves cancels its handler, and so frees its quota and its GPU.

    `auto_decompress`: a few kilobytes would become as many gigabytes, before anybody has asked who sends them.
    """
    return _Runner(
        app,
        failure,
        handler_cancellation=True,
        auto_decompress=False,
        shutdown_timeout=seconds_max,
        keepalive_timeout=KEEPALIVE_SECONDS,
        access_log=None,
        logger=_http_log(),
        max_field_size=HEADER_BYTES_MAX,
        read_bufsize=READ_BUFFER_BYTES,
    )


def _http_log() -> logging.Logger:
    """What aiohttp has to say, but for what is no HTTP (anybody can send that, and it may hold anything) and for
    clients that have left.
    """
    http_log = logging.getLogger("gateway.http")
    http_log.addFilter(_is_no_clients_mistake)
    return http_log


def _is_no_clients_mistake(record: logging.LogRecord) -> bool:
    return not (
        record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | ConnectionResetError)
    )


def _certificates(settings: Settings, gateway: Gateway) -> dict[str, ServerTls]:
    """By listener; watched for as long as the gateway runs. Raises SettingsProblem."""
    found = {}
    for name, tls in (("listen", settings.listen.tls), ("admin", settings.admin.tls)):
        if tls is not None:
            found[name] = ServerTls(tls, f"$.{name}.tls")
            gateway.supervisor.start(f"certificate of {name}", found[name].run)
    return found


async def _open(
    runner: _Runner, at: ListenSettings | AdminSettings, tls: ServerTls | None, *, together: bool = False
) -> str:
    """Listens, and says where. `together`: other processes listen there too. Raises ListenAddressUnavailable."""
    host, port = at.host, at.port
    try:
        context = tls.context if tls is not None else None
        site = web.TCPSite(
            runner, host, port, backlog=BACKLOG, ssl_context=context, reuse_port=together or None
        )
        await site.start()
    except OSError as err:
        raise ListenAddressUnavailable(f"cannot listen on {host}:{port}: {_reason(err)}") from err
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if tls is not None else ''}://{shown}:{runner.addresses[0][1]}"


async def _open_socket(runner: web.AppRunner, path: Path, stack: AsyncExitStack) -> str:
    """Listens on a unix socket, and removes it in the end. Raises ListenAddressUnavailable.

    The loop takes the place of any socket that it finds there, so whether somebody listens is asked first.
    """
    try:
        if _is_answered(path):
            raise OSError(errno.EADDRINUSE, "")
        await web.UnixSite(runner, path, backlog=BACKLOG).start()
        ours = os.stat(path).st_ino
    except OSError as err:
        raise ListenAddressUnavailable(f"cannot listen on {path}: {_reason(err)}") from err

    def remove() -> None:
        with suppress(OSError):
            if path.stat().st_ino == ours:
                path.unlink()

    stack.callback(remove)
    return f"unix:{path}"


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def _reason(err: OSError) -> str:
    """In words. asyncio wraps what the system said in text of its own; an unknown host has a negative number."""
    if err.errno is not None and err.errno > 0:
        return os.strerror(err.errno)
    return err.strerror or str(err)
