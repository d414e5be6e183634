"""The content of a file as an answer, in pieces, whatever its size."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.database.database import DatabaseDown
from gateway.database.file_store import StoredFile
from gateway.domain.errors import FilesUnavailable, GatewayError
from gateway.files.content import ContentDown, ContentLost
from gateway.files.tenant_files import TenantFiles
from gateway.web.error_response import error_response, identity_headers


async def content(
    http: web.Request,
    find: Callable[[], Awaitable[tuple[TenantFiles, StoredFile]]],
    lost: Callable[[], GatewayError],
    *,
    content_type: str,
    idle_seconds_max: float,
) -> web.StreamResponse:
    """As it was written. `lost`: what is said of a file without one. A client that does not read has left."""
    try:
        tenant_files, file = await find()
        pieces = tenant_files.content(file)
        first = await anext(pieces, b"")
    except GatewayError as err:
        return error_response(err, http)
    except ContentLost:
        return error_response(lost(), http)
    except (DatabaseDown, ContentDown):
        return error_response(FilesUnavailable(), http)
    answer = web.StreamResponse(headers={**identity_headers(http), "content-disposition": "attachment"})
    answer.content_type, answer.content_length = content_type, file.bytes

    async def send(piece: bytes) -> None:
        async with asyncio.timeout(idle_seconds_max):
            await answer.write(piece)

    await answer.prepare(http)
    try:
        await send(first)
        async for piece in pieces:
            await send(piece)
        await answer.write_eof()
    except (TimeoutError, ContentLost, ContentDown):
        # The length that was promised cannot come any more: the client must not take this for the whole.
        if http.transport is not None:
            http.transport.abort()
    return answer
