"""CrossOriginPolicy: which pages' scripts may call the API and read its answers (CORS).

    OPTIONS, Origin, Access-Control-Request-Method   ->   204, what may be sent: asked by the browser, without a key
    POST, Origin, Authorization                      ->   an answer that the page may read

A key stands in a header that the page's own script sets. There are no cookies: no credentials need be allowed.
What is said: https://fetch.spec.whatwg.org/#http-cors-protocol.
"""

import re
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.web.middleware.error_middleware import Handler
from gateway.web.request_identity import SERVER

ANY = "*"
METHODS = "DELETE, GET, HEAD, POST"
PREFLIGHT_SECONDS = "600"
ASKED_BYTES_MAX = 2000

_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+( *, *[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LOOPBACK = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")


class CrossOriginPolicy:
    """`origins`: pages that may; `*`: all. `requires_keys`: where nobody has to show one, all are those of this
    machine, or any page that somebody here looks at could have the models work for it.
    """

    def __init__(self, origins: Collection[str], requires_keys: Callable[[], bool]) -> None:
        self._origins = frozenset(origins)
        self._asks_for_keys = requires_keys

    def allowed(self, request: web.BaseRequest) -> str | None:
        """The page's origin, if it may."""
        origin = request.headers.get("Origin")
        if origin is None:
            return None
        if origin in self._origins:
            return origin
        may = ANY in self._origins and (self._asks_for_keys() or _LOOPBACK.fullmatch(origin) is not None)
        return origin if may else None

    def preflight(self) -> Middleware:
        """Answers what browsers ask for themselves."""

        @web.middleware
        async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
            asked = "Access-Control-Request-Method" in request.headers
            if not (asked and request.method == "OPTIONS" and self.allowed(request) is not None):
                return await handler(request)
            headers = {
                "server": SERVER,
                "Access-Control-Allow-Methods": METHODS,
                "Access-Control-Max-Age": PREFLIGHT_SECONDS,
            }
            # Said again: `*` would not be for Authorization, and SDKs send many of their own.
            names = request.headers.get("Access-Control-Request-Headers", "")
            if len(names) <= ASKED_BYTES_MAX and _NAMES.fullmatch(names):
                headers["Access-Control-Allow-Headers"] = names
            return web.Response(status=204, headers=headers)

        return around

    def marking(self) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
        """Marks every answer before it begins, as streams do while they are worked on."""

        async def mark(request: web.Request, response: web.StreamResponse) -> None:
            origin = self.allowed(request)
            response.headers.add("Vary", "Origin")
            if origin is not None:
                response.headers["Access-Control-Allow-Origin"] = origin
                response.headers["Access-Control-Expose-Headers"] = ANY

        return mark
