"""Opens the listeners of a gateway, serves until a signal stops it, and stops without losing a stream."""

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path

from aiohttp import web

from gateway.app import Gateway, running
from gateway.batches.claimer_setup import batch_claimer_of
from gateway.process.memory_return import return_freed_memory
from gateway.process.multiprocess import GatewayProcess
from gateway.runtime.cell_setup import join_cells, open_cell_relay
from gateway.runtime.certificates import ServerTls, certificate_family
from gateway.runtime.drain import drain
from gateway.runtime.listen_error import ListenAddressUnavailable
from gateway.runtime.listener_runner import ListenerRunner, listener_runner
from gateway.runtime.picker_listener import open_picker
from gateway.runtime.reload import Reloader, registered_for_reload
from gateway.runtime.serving_gateway import ServingGateway
from gateway.runtime.tenant_app_setup import object_stores, open_background_responses, tenant_app_of
from gateway.settings.listeners import AdminSettings, ListenSettings
from gateway.settings.sources import LoadedSettings
from gateway.settings.tree import Settings
from gateway.telemetry.metric_families import StateCollector
from gateway.web.admin_app import admin_app, admin_error
from gateway.web.error_response import error_response
from gateway.web.middleware.connection_limits import ConnectionLimiter
from workers.system_error import reason_of

log = logging.getLogger(__name__)

BACKLOG = 1024
DESCRIPTORS = 65536
ADMIN_SECONDS_MAX = 1.0
"""How long requests of operators may continue after SIGTERM."""

SWITCH_SECONDS = 0.0002
"""How long a thread that works on a long prompt keeps the interpreter lock while the event loop waits for it.

The loop waits for the lock at every chunk of every stream, so that Python's own 5 ms would be tens of milliseconds
for one of many streams.
"""


async def run(
    loaded: LoadedSettings,
    on_ready: Callable[[ServingGateway], None] = lambda _: None,
    process: GatewayProcess | None = None,
    read_settings: Callable[[], LoadedSettings] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the drain at once.

    SIGINT comes from a person at a keyboard: load balancers are given no notice, and a gateway without requests
    ends at once.

    Args:
        loaded: What to serve, and where.
        on_ready: Called once the listeners are open.
        process: Which of several gateway processes this one is; None where there is only one.
        read_settings: Reads the settings again for a reload; None keeps them.

    Raises SettingsProblem, ValkeyFailed and ListenAddressUnavailable before it serves, nothing afterwards.
    """
    return_freed_memory()
    settings = loaded.settings
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
    async with serving(loaded, process) as here:
        _freeze_garbage_collector()
        log.info("serving tenants at %s and operators at %s", here.tenant_url, here.admin_url)
        reloader = Reloader(here.gateway, here.certificates, read_settings or (lambda: loaded))
        here.gateway.supervisor.start("reloads", reloader.run)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.ask)
        with registered_for_reload(Path(settings.state_directory)) if process is None else nullcontext():
            on_ready(here)
            by_keyboard = await stop is signal.SIGINT
        await drain(here, at_once, notice_seconds=0.0 if by_keyboard else settings.drain.notice_seconds)


@asynccontextmanager
async def serving(
    loaded: LoadedSettings, process: GatewayProcess | None = None
) -> AsyncIterator[ServingGateway]:
    """Run a gateway with its listeners open; `process`: which of several gateway processes this one is."""
    settings = loaded.settings
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            running(loaded, process.index_memory if process is not None else None)
        )

        # Background work: batches, and responses that clients fetch later.
        batch_claimer = batch_claimer_of(gateway)
        if batch_claimer is not None:
            stack.push_async_callback(batch_claimer.close)
            gateway.supervisor.start("batches", batch_claimer.run)
        background_responses = open_background_responses(gateway, stack)

        # The applications for tenants and for operators.
        stores = object_stores(gateway, batch_claimer, background_responses)
        tenants = listener_runner(
            tenant_app_of(gateway, stores, open_cell_relay(gateway, stack)),
            error_response,
            drain_seconds=settings.drain.seconds,
        )
        admin = listener_runner(admin_app(gateway, process), admin_error, drain_seconds=ADMIN_SECONDS_MAX)
        for runner in (tenants, admin):
            stack.push_async_callback(runner.cleanup)
            await runner.setup()

        # The listeners: for tenants, for Envoy, for operators.
        certificates = _certificates(settings, gateway)
        gateway.metrics.register(StateCollector([certificate_family(certificates)]))
        tenant_url = await _open_tenant_listener(tenants, settings.listen, certificates, process, stack)
        picker = await open_picker(gateway, stack, shared_port=process is not None)
        await join_cells(gateway)
        yield ServingGateway(
            gateway=gateway,
            tenant_url=tenant_url,
            admin_url=await _open_admin_listener(admin, settings.admin, certificates, process, stack),
            runner=tenants,
            certificates=tuple(certificates.values()),
            batch_claimer=batch_claimer,
            background_responses=background_responses,
            endpoint_picker=picker,
        )


async def _open_tenant_listener(
    runner: ListenerRunner,
    listen: ListenSettings,
    certificates: Mapping[str, ServerTls],
    process: GatewayProcess | None,
    stack: AsyncExitStack,
) -> str:
    """Listen for tenants and return the URL. Raises ListenAddressUnavailable."""
    if listen.unix_socket is not None:
        return await _open_socket(runner, Path(listen.unix_socket), stack)
    runner.bound = ConnectionLimiter(listen.connections_per_address_max, listen.trusted_proxies)
    return await _open(runner, listen, certificates.get("listen"), shared_port=process is not None)


async def _open_admin_listener(
    runner: ListenerRunner,
    admin: AdminSettings,
    certificates: Mapping[str, ServerTls],
    process: GatewayProcess | None,
    stack: AsyncExitStack,
) -> str:
    """Listen for operators and return the URL. Raises ListenAddressUnavailable.

    Of several gateway processes the first one has the port; it reads the others' state through unix sockets.
    """
    if process is None or process.number == 0:
        return await _open(runner, admin, certificates.get("admin"))
    return await _open_socket(runner, process.admin_socket(process.number), stack)


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files: a stream has two sockets, and the usual 1,024 suit a shell, not a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _freeze_garbage_collector() -> None:
    """Exempt the objects made so far from garbage collection, and collect seldom: requests leave few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _certificates(settings: Settings, gateway: Gateway) -> dict[str, ServerTls]:
    """Return the TLS contexts by listener, each watched for as long as the gateway runs. Raises SettingsProblem."""
    found = {}
    picker = settings.listen.endpoint_picker
    for name, tls in (
        ("listen", settings.listen.tls),
        ("listen.endpoint_picker", picker.tls if picker is not None else None),
        ("admin", settings.admin.tls),
    ):
        if tls is not None:
            found[name] = ServerTls(tls, f"$.{name}.tls")
            gateway.supervisor.start(f"certificate of {name}", found[name].run)
    return found


async def _open(
    runner: ListenerRunner,
    address: ListenSettings | AdminSettings,
    tls: ServerTls | None,
    *,
    shared_port: bool = False,
) -> str:
    """Listen on a TCP port and return its URL; `shared_port`: other processes listen on it too.

    Raises ListenAddressUnavailable.
    """
    host, port = address.host, address.port
    try:
        context = tls.context if tls is not None else None
        site = web.TCPSite(
            runner, host, port, backlog=BACKLOG, ssl_context=context, reuse_port=shared_port or None
        )
        await site.start()
    except OSError as err:
        raise ListenAddressUnavailable(f"cannot listen on {host}:{port}: {reason_of(err)}") from err
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if tls is not None else ''}://{shown}:{runner.addresses[0][1]}"


async def _open_socket(runner: ListenerRunner, path: Path, stack: AsyncExitStack) -> str:
    """Listen on a unix socket, which is removed when the stack closes. Raises ListenAddressUnavailable.

    The event loop replaces any socket that it finds at the path, so the path is first checked for a listening
    process.
    """
    try:
        if _is_answered(path):
            raise OSError(errno.EADDRINUSE, "")
        await web.UnixSite(runner, path, backlog=BACKLOG).start()
        ours = os.stat(path).st_ino
    except OSError as err:
        raise ListenAddressUnavailable(f"cannot listen on {path}: {reason_of(err)}") from err

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
