"""Refusals of the operators' listener, as RFC 9457 has them."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

import orjson
from aiohttp import web

log = logging.getLogger(__name__)

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
    500: "Failed",
    503: "Not available",
}


class Problem(Exception):
    """`detail`: one sentence, safe for whoever asked."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}

    def response(self, instance: str | None) -> web.Response:
        """`instance`: the path that was asked for; None where nobody could read it."""
        body = {
            "type": "about:blank",
            "title": TITLES.get(self.status) or HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail.encode("utf-8", "replace").decode(),
        }
        if instance is not None:
            body["instance"] = instance.encode("utf-8", "replace").decode()
        return web.Response(
            status=self.status,
            body=orjson.dumps(body),
            content_type="application/problem+json",
            headers={**HEADERS, **self.headers},
        )


def no_database(err: Exception) -> Problem:
    """It is there, and does not answer."""
    log.warning("the admin API: the database: %s", str(err) or "no answer in time")
    return Problem(503, "The database cannot be asked.", {"retry-after": "1"})
