"""The worker's API key: without it only probes and metrics are answered."""

import hmac

from aiohttp import web
from aiohttp.typedefs import Middleware

from workers.engine_server.errors import ApiError, Handler

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""A kubelet and Prometheus have no key."""


def requires_key(key: str) -> Middleware:
    """Return a middleware that refuses requests without this key."""
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        presented = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if request.path not in OPEN_PATHS and not hmac.compare_digest(presented, expected):
            raise ApiError(401, "This worker needs its API key as a bearer token.", code="invalid_api_key")
        return await handler(request)

    return check_key
