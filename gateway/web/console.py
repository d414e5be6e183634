"""Serves the files of the operator console and of the tenants' page: plain modules and styles, not built.

The pages contain no data. They call the APIs with the rights of the token, key or session that they send.
"""

import hashlib
from functools import cache
from importlib.resources import files

from aiohttp import web

from gateway.adminapi.problems import Problem
from gateway.domain.errors import NotFound
from gateway.web.error_response import error_response

INDEX = "index.html"
TENANT_PAGE = "tenant.html"
TENANT_FILES = {
    *(TENANT_PAGE, "tenant.js", "api.js", "chart.js", "dom.js", "playground.js", "requests.js", "usage.js"),
    *("console.css", "uplot.css", "uplot.js"),
}
"""The files that the tenants' listener serves."""

CONTENT_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "server": "radixgate",
}


async def console_file(http: web.Request) -> web.Response:
    """Answer with a file of the operator console. Raises Problem."""
    response = file_response(http, http.match_info.get("file", "") or INDEX)
    if response is None:
        raise Problem(404, "There is nothing here.")
    return response


def is_page(http: web.Request) -> bool:
    """Return whether a request is for a page of the console, not for a script, style or image."""
    return (http.match_info.get("file", "") or INDEX).endswith(".html")


async def tenant_page_file(http: web.Request) -> web.Response:
    """Answer with a file of the tenants' page."""
    name = http.match_info.get("file", "") or TENANT_PAGE
    response = file_response(http, name) if name in TENANT_FILES else None
    return response or error_response(NotFound("There is nothing here."), http)


def file_response(http: web.Request, name: str) -> web.Response | None:
    """Return the response with a file, or a 304 if the browser has it already; None for an unknown name."""
    found = _contents().get(name)
    if found is None:
        return None
    body, kind, etag = found
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": etag}
    if http.headers.get("If-None-Match") == etag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


@cache
def _contents() -> dict[str, tuple[bytes, str, str]]:
    """Return body, content type and ETag of every file, by name."""
    found = {}
    for file in (files("gateway.web") / "console_files").iterdir():
        kind = CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
