"""Cross-origin resource sharing (CORS): decides which web pages may call the API and read its answers.

    OPTIONS, Origin, Access-Control-Request-Method   ->   204: the browser's own request, without a key
    POST, Origin, Authorization                      ->   an answer that the page may read

The key is in a header that the page's own script sets. There are no cookies, so credentials need not be allowed.
The headers: https://fetch.spec.whatwg.org/#http-cors-protocol.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import ClassVar

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.web.middleware.error_middleware import Handler
from gateway.web.request_identity import SERVER

ANY = "*"
METHODS = "DELETE, GET, HEAD, POST"
PREFLIGHT_SECONDS = "600"
REQUESTED_HEADERS_LENGTH_MAX = 2000

_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+( *, *[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LOOPBACK = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")


class CrossOriginPolicy:
    """The origins of the web pages that may call the API."""

    headers_without_origin: ClassVar[Mapping[str, str]] = {"vary": "Origin"}
    """Headers of the answer to a request without an origin: a cache keeps it apart from answers to pages."""

    def __init__(self, origins: Collection[str], requires_keys: Callable[[], bool]) -> None:
        """Create a policy.

        Args:
            origins: The allowed origins; `*` for all.
            requires_keys: Whether requests need an API key. If not, `*` allows only pages of this machine;
                otherwise
                any page that is open in a browser here could use the models.
        """
        self._origins = frozenset(origins)
        self._requires_keys = requires_keys

    def allowed(self, request: web.BaseRequest) -> str | None:
        """Return the origin of the page that sent a request, if it is allowed."""
        origin = request.headers.get("Origin")
        if origin is None:
            return None
        if origin in self._origins:
            return origin
        may = ANY in self._origins and (self._requires_keys() or _LOOPBACK.fullmatch(origin) is not None)
        return origin if may else None

    def preflight(self) -> Middleware:
        """Return a middleware that answers the browsers' preflight requests."""

        @web.middleware
        async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
            is_preflight = "Access-Control-Request-Method" in request.headers
            if not (is_preflight and request.method == "OPTIONS" and self.allowed(request) is not None):
                return await handler(request)
            headers = {
                "server": SERVER,
                "Access-Control-Allow-Methods": METHODS,
                "Access-Control-Max-Age": PREFLIGHT_SECONDS,
            }
            # The requested names are repeated: `*` does not include Authorization, and SDKs send many headers.
            names = request.headers.get("Access-Control-Request-Headers", "")
            if len(names) <= REQUESTED_HEADERS_LENGTH_MAX and _NAMES.fullmatch(names):
                headers["Access-Control-Allow-Headers"] = names
            return web.Response(status=204, headers=headers)

        return around

    def response_headers(self) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
        """Return a hook that adds the CORS headers to every answer before it is started."""

        async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
            origin = self.allowed(request)
            response.headers.add("Vary", "Origin")
            if origin is not None:
                response.headers["Access-Control-Allow-Origin"] = origin
                response.headers["Access-Control-Expose-Headers"] = ANY

        return add_headers
