"""Reading of short request bodies, such as the JSON that creates a batch."""

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from gateway.domain.errors import BadRequest, BodyTimeout, PayloadTooLarge
from gateway.domain.request_headers import require_identity
from gateway.web.bodies.expectation import ask_for_body


async def read_small_body(http: web.Request, bytes_max: int, seconds_max: float) -> bytes:
    """Return a whole request body of at most `bytes_max` bytes, received within `seconds_max` seconds.

    Raises:
        PayloadTooLarge: The body is longer than `bytes_max`.
        BodyTimeout: The body did not arrive in time.
        UnsupportedEncoding: The body is compressed.
        BadRequest: The body broke off.
    """
    require_identity(http.headers)
    if (http.content_length or 0) > bytes_max:
        raise PayloadTooLarge(bytes_max)
    await ask_for_body(http)
    body = b""
    try:
        async with asyncio.timeout(seconds_max):
            while piece := await http.content.readany():
                body += piece
                if len(body) > bytes_max:
                    raise PayloadTooLarge(bytes_max)
    except TimeoutError:
        raise BodyTimeout(seconds_max) from None
    except RequestPayloadError as err:
        raise BadRequest("The body did not arrive as its headers said.") from err
    return body
