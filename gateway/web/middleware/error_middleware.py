"""Around every handler of a listener: whom it answers at all, and what is said when a handler fails.

A browser sends requests to any address that a page's host name leads to, and a host name may lead to 127.0.0.1.
What asks for no key on loopback must therefore be asked for by its own name.
"""

import logging
import re
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.domain.errors import ForbiddenHost, GatewayError, InternalError, MethodNotAllowed, NotFound
from gateway.web.request_identity import new_request_id

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d*)?", re.I)


def boundary(
    failure: Callable[[GatewayError, web.Request], web.Response], *, local_names_only: Callable[[], bool]
) -> Middleware:
    """`failure`: an error in the listener's own shape. `local_names_only`: must the host be named as loopback?"""

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        if local_names_only() and not _LOOPBACK.fullmatch(request.headers.get("Host", "")):
            return failure(ForbiddenHost(), request)
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return failure(NotFound(f"There is nothing at {request.method} {request.path[:200]}."), request)
        except web.HTTPMethodNotAllowed as err:
            return failure(MethodNotAllowed(", ".join(sorted(err.allowed_methods))), request)
        except (web.HTTPException, ConnectionResetError):
            raise
        except Exception:
            request_id = new_request_id()
            log.exception("%s %r failed in the gateway (%s)", request.method, request.path, request_id)
            return failure(InternalError(request_id), request)

    return around


async def expectations(request: web.Request) -> None:
    """What a client expects before it sends its body (RFC 9110, 10.1.1): 100-continue is met, the rest ignored.

    aiohttp would quote the rest in an answer of its own, and fail at what is no text.
    """
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # These bytes are no part of the answer.
        request.writer.output_size = 0
