"""Error responses of the operators' listener, as problem documents (RFC 9457)."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
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
    """An error that is answered as a problem document. `detail` is one sentence, safe to show to the caller."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}

    def response(self, instance: str | None) -> web.Response:
        """Return the HTTP response. `instance` is the path of the request; None where the request was malformed."""
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
            body=msgspec.json.encode(body),
            content_type="application/problem+json",
            headers={**HEADERS, **self.headers},
        )


def database_problem(err: Exception) -> Problem:
    """Return the problem for a database that does not answer, and log the cause."""
    log.warning("the admin API: the database does not answer: %s", str(err) or "timeout")
    return Problem(503, "The database does not answer.", {"retry-after": "1"})
