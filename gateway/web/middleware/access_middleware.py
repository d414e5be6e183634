"""Middleware that writes the access log: the outermost one, around every handler of a listener."""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.domain.errors import CLIENT_CLOSED_STATUS
from gateway.telemetry.access_log import AccessLine, AccessLog
from gateway.web.middleware.error_middleware import Handler
from gateway.web.request_identity import CALLER, REQUEST_ID

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
STATUS_FAILED = 500


def access_log_middleware(
    log: AccessLog, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
) -> Middleware:
    """Return a middleware that logs one line per request, including failed and aborted ones."""

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        received_at, began = wall(), clock()
        status = STATUS_FAILED
        try:
            response = await handler(request)
            status = response.status
            request[REQUEST_ID] = response.headers.get("x-request-id", "")
            if not response.prepared:
                # Sent here, because the number of bytes is known only after sending.
                await response.prepare(request)
                await response.write_eof()
            elif not response.body_length:
                status = CLIENT_CLOSED_STATUS  # The stream was cut short.
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            status = CLIENT_CLOSED_STATUS
            raise
        finally:
            tenant, key_id = request.get(CALLER, ("", ""))
            resource, request_id = request.match_info.route.resource, request.get(REQUEST_ID, "")
            log.put(
                AccessLine(
                    seconds=received_at,
                    tenant=tenant,
                    key_id=key_id,
                    # Any other method is arbitrary text of the client.
                    method=request.method if request.method in METHODS else "",
                    route=resource.canonical if resource is not None else "",
                    status=status,
                    bytes=request.writer.output_size,
                    ms=round(1000 * (clock() - began), 3),
                    request_id=request_id,
                    record=log.take_record(request_id) if request_id else None,
                )
            )

    return around
