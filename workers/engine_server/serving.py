"""Starts a worker from its options, and stops it.

    bind -> load -> listen -> ... -> stop listening -> end handlers -> stop the engine

The address is bound before the model is loaded, so that a taken port shows at once and not after a minute.
Connections are accepted only once the model is loaded.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from workers.chat_template import ChatTemplate, TemplateFailed
from workers.engine.async_engine import AsyncEngine
from workers.engine.engine import Engine
from workers.engine_server.app import build_app
from workers.engine_server.disaggregation import DisaggregationStatus, disaggregated
from workers.engine_server.engine_worker import EngineWorker
from workers.engine_server.kv_events import KvEventPublisher
from workers.engine_server.options import WorkerOptions
from workers.engine_server.prompt_tokenizer import PromptTokenizer
from workers.engine_server.tools.formats import FORMATS, CallFormat, detect_format
from workers.system_error import reason_of

_log = logging.getLogger("radixgate.worker")

_BACKLOG = 1024
_SHUTDOWN_SECONDS = 1.0
"""The time that handlers have to end after they are cancelled."""


class WorkerCannotListen(Exception):
    """Raised when the worker's address is taken, forbidden or unknown; the one-line message has the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWorker:
    """A worker that accepts requests at `url`."""

    worker: EngineWorker
    url: str


@asynccontextmanager
async def serve(options: WorkerOptions) -> AsyncIterator[ServingWorker]:
    """Run a worker: load the model and listen, and on leaving stop both.

    Raises:
        WorkerCannotListen, CheckpointInvalid, ConfigInvalid: The worker could not start.
    """
    config = options.engine_config()
    listener = None if options.unix_socket else _bind(options.host, options.port)
    try:
        engine = Engine.load(config)
        template = _template(options.model)
    except BaseException:
        if listener:
            listener.close()
        raise
    async with (
        AsyncEngine(engine) as async_engine,
        _publisher(options, async_engine) as publisher,
        _disaggregated(options, engine, async_engine) as disaggregation,
    ):
        worker = EngineWorker(
            options=options,
            engine=async_engine,
            prompt_tokenizer=PromptTokenizer(async_engine.tokenizer, template),
            publisher=publisher,
            embedder=engine.embedder,
            disaggregation=disaggregation,
            call_format=_call_format(options, template),
            created=int(time.time()),
        )
        # Without handler_cancellation a handler and its sequences would run on after the client disconnected.
        runner = web.AppRunner(
            build_app(worker, options.api_key),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        try:
            await _listen(runner, options, listener)
            yield ServingWorker(worker=worker, url=_url(options, listener))
        finally:
            await runner.cleanup()
            if options.unix_socket:
                options.unix_socket.unlink(missing_ok=True)


@asynccontextmanager
async def _disaggregated(
    options: WorkerOptions, engine: Engine, async_engine: AsyncEngine
) -> AsyncIterator[DisaggregationStatus]:
    """Run the worker's handoffs. Raises WorkerCannotListen if the bootstrap port is taken."""
    async with AsyncExitStack() as stack:
        try:
            status = await stack.enter_async_context(disaggregated(options, engine, async_engine))
        except OSError as err:
            where = f"{options.kv_events_host}:{options.disaggregation_bootstrap_port}"
            raise WorkerCannotListen(f"cannot listen on {where} for handoffs: {reason_of(err)}") from err
        yield status


@asynccontextmanager
async def _publisher(options: WorkerOptions, engine: AsyncEngine) -> AsyncIterator[KvEventPublisher | None]:
    """Publish the engine's KV events. Raises WorkerCannotListen if the port is taken."""
    if options.kv_events_port is None:
        yield None
        return
    try:
        publisher = KvEventPublisher(
            options.kv_events_host,
            options.kv_events_port,
            engine.info.block_size,
            options.kv_events_buffer_steps,
            # As vLLM numbers them, from one.
            lora_ids={name: number for number, (name, _) in enumerate(options.lora_modules, start=1)},
        )
    except OSError as err:
        raise WorkerCannotListen(err.strerror) from err
    engine.on_kv_events = publisher.publish
    replaying = asyncio.create_task(publisher.replay())
    try:
        yield publisher
    finally:
        replaying.cancel()
        await asyncio.gather(replaying, return_exceptions=True)
        publisher.close()


def _call_format(options: WorkerOptions, template: ChatTemplate | None) -> CallFormat | None:
    if options.tool_call_parser != "auto":
        return FORMATS[options.tool_call_parser]
    return detect_format(template.text_with_tools) if template else None


def _template(model: Path) -> ChatTemplate | None:
    """Return the chat template, or None for a base model; chat requests to it are refused one by one."""
    try:
        return ChatTemplate.from_directory(model)
    except TemplateFailed as err:
        _log.warning("chat requests will be refused: %s", err)
        return None


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as err:
        raise WorkerCannotListen(f"cannot listen on {host}:{port}: {reason_of(err)}") from err
    return listener


async def _listen(runner: web.AppRunner, options: WorkerOptions, listener: socket.socket | None) -> None:
    site: web.BaseSite
    if listener:
        site = web.SockSite(runner, listener, backlog=_BACKLOG)
    else:
        site = web.UnixSite(runner, str(options.unix_socket), backlog=_BACKLOG)
    try:
        await site.start()
    # Two processes can bind the same free port; only one of them can then listen on it.
    except OSError as err:
        where = options.unix_socket or f"{options.host}:{options.port}"
        raise WorkerCannotListen(f"cannot listen on {where}: {reason_of(err)}") from err


def _url(options: WorkerOptions, listener: socket.socket | None) -> str:
    if listener is None:
        return f"unix:{options.unix_socket}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
