"""Middleware around every handler of a listener: refuses foreign host names, and turns failures into answers.

A web page can make a browser send requests to any address that the page's host name resolves to, also to 127.0.0.1
(DNS rebinding). A listener on loopback that asks for no key therefore answers only requests with a Host header that
names loopback.
"""

import logging
import re
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.domain.errors import GatewayError, HostNotAllowed, InternalError, MethodNotAllowed, NotFound
from gateway.web.request_identity import new_request_id

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d*)?", re.I)


def error_middleware(
    error_answer: Callable[[GatewayError, web.Request], web.Response], *, local_names_only: Callable[[], bool]
) -> Middleware:
    """Return a middleware that answers failures of handlers in the listener's own shape.

    Args:
        error_answer: Returns the answer for an error.
        local_names_only: Whether the Host header has to name loopback.
    """

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _LOOPBACK.fullmatch(request.headers.get("Host", "")) and local_names_only():
            return error_answer(HostNotAllowed(), request)
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return error_answer(
                NotFound(f"There is nothing at {request.method} {request.path[:200]}."), request
            )
        except web.HTTPMethodNotAllowed as err:
            return error_answer(MethodNotAllowed(", ".join(sorted(err.allowed_methods))), request)
        except (web.HTTPException, ConnectionResetError):
            raise
        except Exception:
            request_id = new_request_id()
            log.exception("%s %r failed in the gateway (%s)", request.method, request.path, request_id)
            return error_answer(InternalError(request_id), request)

    return around
