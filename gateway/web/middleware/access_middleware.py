"""What the access log is told of each request of a listener: outermost, around whatever answers it."""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.telemetry.access_log import AccessLine, AccessLog
from gateway.web.middleware.error_middleware import Handler
from gateway.web.request_identity import CALLER, REQUEST_ID

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
STATUS_CLIENT_CLOSED = 499
STATUS_FAILED = 500


def access(
    log: AccessLog, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
) -> Middleware:
    """A line for each request, however it ends."""

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        came, began = wall(), clock()
        status = STATUS_FAILED
        try:
            response = await handler(request)
            status = response.status
            request[REQUEST_ID] = response.headers.get("x-request-id", "")
            if not response.prepared:
                # Sent here, for only then it is known how much that was.
                await response.prepare(request)
                await response.write_eof()
            elif not response.body_length:
                status = STATUS_CLIENT_CLOSED  # It has not come to its end.
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            status = STATUS_CLIENT_CLOSED
            raise
        finally:
            tenant, key_id = request.get(CALLER, ("", ""))
            resource = request.match_info.route.resource
            log.put(
                AccessLine(
                    seconds=came,
                    tenant=tenant,
                    key_id=key_id,
                    # What is none of these may be anything.
                    method=request.method if request.method in METHODS else "",
                    route=resource.canonical if resource is not None else "",
                    status=status,
                    bytes=request.writer.output_size,
                    ms=round(1000 * (clock() - began), 3),
                    request_id=request.get(REQUEST_ID, ""),
                )
            )

    return around
