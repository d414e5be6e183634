"""Middleware around every handler of a listener: refuses foreign host names, and turns failures into answers.

A web page can make a browser send requests to any address that the page's host name resolves to, even 127.0.0.1
(DNS rebinding). A loopback listener that requires no key therefore answers only requests with a Host header that
names loopback. It also refuses requests of foreign pages that change or cost something, since browsers send some of
these without a preflight.
"""

import logging
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.domain.errors import (
    GatewayError,
    HostNotAllowed,
    InternalError,
    MethodNotAllowed,
    NotFound,
    OriginNotAllowed,
)
from gateway.settings.listeners import names_loopback
from gateway.web.request_identity import new_request_id

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


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
        if (
            not names_loopback(request.headers.get("Host", ""))
            and request.path not in any_host
            and local_names_only()
        ):
            return error_answer(HostNotAllowed(), request)
        if (
            ("Origin" in request.headers or "Sec-Fetch-Site" in request.headers)
            and request.method not in SAFE_METHODS
            and local_names_only()
            and not _is_own_page(request)
            and not page_allowed(request)
        ):
            return error_answer(OriginNotAllowed(), request)
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


def _is_own_page(request: web.BaseRequest) -> bool:
    """Return whether a request comes from a page of this listener, or from none."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    return request.headers["Origin"].partition("://")[2].lower() == request.headers.get("Host", "").lower()
