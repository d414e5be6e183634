"""Middleware around every handler of a listener: turns failures into answers, and refuses foreign web pages."""

import logging
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.domain.errors import GatewayError, InternalError, MethodNotAllowed, NotFound
from gateway.web.middleware.foreign_pages import refusal_of_page
from gateway.web.request_identity import new_request_id

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def error_middleware(
    error_answer: Callable[[GatewayError, web.Request], web.Response],
    *,
    local_names_only: Callable[[], bool],
    any_host: Collection[str] = (),
    page_allowed: Callable[[web.BaseRequest], bool] = lambda _: False,
) -> Middleware:
    """Return a middleware that answers failures of handlers in the listener's error format.

    Args:
        error_answer: Returns the answer for an error.
        local_names_only: Whether the Host header has to name loopback.
        any_host: Paths that are served with any Host header, or none.
        page_allowed: Whether the settings allow the web page that sent a request.
    """

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = refusal_of_page(request, local_names_only, any_host, page_allowed)
        if refusal is not None:
            return error_answer(refusal, request)
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
