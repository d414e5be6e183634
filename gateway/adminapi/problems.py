"""Refusals of the admin API, as RFC 9457 has them."""

from collections.abc import Mapping

import orjson
from aiohttp import web

HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store", "server": "radixgate"}

TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    412: "Precondition failed",
    413: "Too large",
    415: "Not JSON",
    429: "Too many failures",
    503: "Not available",
}


class Problem(Exception):
    """`detail`: one sentence, safe for whoever asked."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}

    def response(self, instance: str) -> web.Response:
        body = {
            "type": "about:blank",
            "title": TITLES[self.status],
            "status": self.status,
            "detail": self.detail.encode("utf-8", "replace").decode(),
            "instance": instance.encode("utf-8", "replace").decode(),
        }
        return web.Response(
            status=self.status,
            body=orjson.dumps(body),
            content_type="application/problem+json",
            headers={**HEADERS, **self.headers},
        )
