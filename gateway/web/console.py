"""The files of the operator console: plain modules, styles and pictures, served as they lie in `console_files`.

The page reads and changes everything by the admin API, with the rights of the token or session that it sends.
"""

import hashlib
from functools import cache
from importlib.resources import files

from aiohttp import web

from gateway.adminapi.problems import Problem

INDEX = "index.html"
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
    """Answer with a file of the console; a browser that has it already gets a 304. Raises Problem."""
    found = _contents().get(http.match_info.get("file", "") or INDEX)
    if found is None:
        raise Problem(404, "There is nothing here.")
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
