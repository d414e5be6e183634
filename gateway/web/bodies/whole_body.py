"""The whole body of an inference request: read within its bounds of size, time and memory, and decompressed."""

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from gateway.domain.errors import BadRequest, BodyTimeout, PayloadTooLarge
from gateway.domain.memory_budget import MemoryLease
from gateway.web.bodies.body_reader import read_body
from gateway.web.bodies.compressed_body import decompress, decompressor_for
from gateway.web.bodies.expectation import ask_for_body
from gateway.web.direct.request import DirectRequest


async def whole_body(http: web.Request, memory: MemoryLease, bytes_max: int, seconds_max: float) -> bytes:
    """Return the body of a request, which may be a DirectRequest; it has to arrive within `seconds_max`.

    Raises BadRequest, UnsupportedEncoding, PayloadTooLarge, BodyTimeout, Overloaded.
    """
    decompressor = decompressor_for(http.headers) if "content-encoding" in http.headers else None
    # As most bodies do, this one may have come together with its headers: there is nothing to wait for.
    body: bytes | None = None
    direct: object = http
    if isinstance(direct, DirectRequest):
        body, direct.whole = direct.whole, None
    try:
        if body is None:
            content = http.content
            body = (
                content.read_nowait()
                if content.is_eof()
                else await _arriving(http, memory, bytes_max, seconds_max)
            )
    except RequestPayloadError as err:
        raise BadRequest("The body did not arrive as its headers said.") from err
    if len(body) > bytes_max:
        raise PayloadTooLarge(bytes_max)
    return body if decompressor is None else await decompress(body, decompressor, memory, bytes_max)


async def _arriving(http: web.Request, memory: MemoryLease, bytes_max: int, seconds_max: float) -> bytes:
    """Return a body that arrives. Raises PayloadTooLarge, BodyTimeout, RequestPayloadError, Overloaded."""
    try:
        if (http.content_length or 0) > bytes_max:
            raise PayloadTooLarge(bytes_max)
        await ask_for_body(http)
        async with asyncio.timeout(seconds_max):
            return await read_body(http.content, bytes_max, memory)
    except TimeoutError:
        raise BodyTimeout(seconds_max) from None
