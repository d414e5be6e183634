"""The aiohttp runner of a listener: it serves the connections, and ends them when the gateway stops."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.web.direct.connection import DirectConnection
from gateway.web.middleware.connection_limits import ConnectionLimiter
from gateway.web.middleware.protocol_errors import ErrorAnswer, with_error_answers
from gateway.web.tenant_app import DIRECT_ROUTES

KEEPALIVE_SECONDS = 75.0
HEADER_BYTES_MAX = 16 * 1024
READ_BUFFER_BYTES = 256 * 1024
LEAST_SECONDS = 0.01
"""The shortest timeout of aiohttp: 0 is none."""


class ListenerRunner(web.AppRunner):
    """An aiohttp runner that answers protocol errors in the listener's own format, and may count connections."""

    bound: ConnectionLimiter | None = None
    """Limits connections per address; None: not limited."""

    def __init__(self, app: web.Application, error_answer: ErrorAnswer, **options: Any) -> None:
        super().__init__(app, **options)
        self._with_error_answers = with_error_answers(error_answer)

    @property
    def server(self) -> Any:
        """The factory that makes a protocol object for every connection."""
        made = super().server
        if made is None:
            return None

        routes = self.app.get(DIRECT_ROUTES)

        def new() -> asyncio.Protocol:
            inner = self._with_error_answers(made())
            return DirectConnection(inner, routes, KEEPALIVE_SECONDS) if routes is not None else inner

        return self.bound.counted(new) if self.bound is not None else new

    async def stop(self, seconds_max: float) -> None:
        """Close the listener, and wait at most this long for the requests on its connections.

        aiohttp's `cleanup` alone may wait three times its `shutdown_timeout`: in `on_shutdown` of the application,
        for the requests that aiohttp serves, and for those of them that it has cancelled.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self.cleanup()

    async def close_connections(self) -> None:
        """Close all connections at once; the handlers of requests that aiohttp serves are cancelled."""
        aiohttp_server = super().server
        if aiohttp_server is not None:
            await aiohttp_server.shutdown(LEAST_SECONDS)


def listener_runner(
    app: web.Application, error_answer: ErrorAnswer, *, drain_seconds: float
) -> ListenerRunner:
    """Return the aiohttp runner of a listener, which serves as all listeners of a gateway do.

    `drain_seconds` is the longest that each stage of its `cleanup` waits for running requests.
    `handler_cancellation` is on: a client that leaves cancels its handler, and so frees its quota and its GPU.
    Plain inference requests, which aiohttp does not serve, are cancelled by `DirectConnection.connection_lost`.
    `auto_decompress` is off: a few kilobytes could become as many gigabytes before the client is authenticated.
    """
    return ListenerRunner(
        app,
        error_answer,
        handler_cancellation=True,
        auto_decompress=False,
        shutdown_timeout=drain_seconds,
        keepalive_timeout=KEEPALIVE_SECONDS,
        access_log=None,
        logger=_http_log(),
        max_field_size=HEADER_BYTES_MAX,
        read_bufsize=READ_BUFFER_BYTES,
    )


def _http_log() -> logging.Logger:
    """Return the logger for aiohttp, without the mistakes of clients.

    Bytes that are no HTTP (any client can send such bytes, and they may hold anything) and clients that have left
    are not logged.
    """
    http_log = logging.getLogger("gateway.http")
    http_log.addFilter(_is_not_a_client_mistake)
    return http_log


def _is_not_a_client_mistake(record: logging.LogRecord) -> bool:
    return not (
        record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | ConnectionResetError)
    )
