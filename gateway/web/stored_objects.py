"""What the APIs of kept things (responses, files, batches) have in common: whose they are, and pages of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from gateway.database.batch_store import BatchStore
from gateway.database.database import DatabaseDown
from gateway.database.pages import Page
from gateway.database.response_store import ResponseStore
from gateway.domain.errors import BadRequest, BodyTimeout, GatewayError, PayloadTooLarge, UnsupportedEncoding
from gateway.domain.tenant import Tenant
from gateway.files.content import ContentDown
from gateway.files.tenant_files import Shelf
from gateway.web.error_response import failure, identified
from gateway.web.middleware.error_middleware import Handler
from gateway.web.responses.background import Runs

TenantOf = Callable[[web.Request], Awaitable[Tenant]]
"""Whose key a request has. Raises what Entrance.admit raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where things are kept; None: nowhere. `runs`: responses in the background. `unfinished_max`: batches of a
    tenant. `rows_max`, `row_bytes_max`: of one batch. `wake`: there is one to run."""

    responses: ResponseStore | None = None
    runs: Runs | None = None
    shelf: Shelf | None = None
    batches: BatchStore | None = None
    unfinished_max: int = 0
    rows_max: int = 0
    row_bytes_max: int = 0
    wake: Callable[[], None] = lambda: None


def answering(work: Callable[[web.Request], Awaitable[bytes]], away: Callable[[], GatewayError]) -> Handler:
    """A handler that answers with this JSON. `away`: what it says when those who keep it cannot be reached."""

    async def handle(http: web.Request) -> web.Response:
        try:
            body = await work(http)
        except GatewayError as err:
            return failure(err, http)
        except (DatabaseDown, ContentDown):
            return failure(away(), http)
        return web.Response(body=body, content_type="application/json", headers=identified(http))

    return handle


def page_of(http: web.Request, *, limit: int, limit_max: int) -> Page:
    """What part of a list is asked for; `limit`: unless it says. Raises BadRequest."""
    asked, order = limit_of(http, limit=limit, limit_max=limit_max), http.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc.", param="order")
    return Page(limit=asked, after=http.query.get("after"), newest_first=order == "desc")


def limit_of(http: web.Request, *, limit: int, limit_max: int) -> int:
    """How many of a list are asked for at most. Raises BadRequest."""
    asked = http.query.get("limit", str(limit))
    if not (asked.isdecimal() and asked.isascii() and 1 <= int(asked[:9]) <= limit_max):
        raise BadRequest(f"limit must be between 1 and {limit_max}.", param="limit")
    return int(asked[:9])


async def small_body(http: web.Request, bytes_max: int, seconds_max: float) -> bytes:
    """All of it. Raises PayloadTooLarge, BodyTimeout, UnsupportedEncoding, BadRequest."""
    if (encoding := http.headers.get("Content-Encoding", "identity")).strip().lower() != "identity":
        raise UnsupportedEncoding(encoding)
    held = b""
    try:
        async with asyncio.timeout(seconds_max):
            while piece := await http.content.readany():
                held += piece
                if len(held) > bytes_max:
                    raise PayloadTooLarge(bytes_max)
    except TimeoutError:
        raise BodyTimeout(seconds_max) from None
    except RequestPayloadError as err:
        raise BadRequest("The body did not arrive as its headers said.") from err
    return held
