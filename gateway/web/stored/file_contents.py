"""Sends the content of a stored file as an HTTP answer, in pieces, so that files may be of any size."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.database.database import DatabaseDown
from gateway.database.file_store import StoredFile
from gateway.domain.errors import FilesUnavailable, GatewayError
from gateway.files.content_store import ContentDown, ContentLost
from gateway.files.tenant_files import TenantFiles
from gateway.web.error_response import error_response, identity_headers


async def send_content(
    http: web.Request,
    find: Callable[[], Awaitable[tuple[TenantFiles, StoredFile]]],
    lost_error: Callable[[], GatewayError],
    *,
    content_type: str,
    unread_seconds_max: float,
) -> web.StreamResponse:
    """Answer with the content of a file, unchanged.

    Args:
        http: The request.
        find: Returns the file and the storage of its tenant. Raises GatewayError.
        lost_error: Returns the error for a file without its content.
        content_type: Of the answer.
        unread_seconds_max: A client that reads nothing for so long is treated as gone.
    """
    try:
        tenant_files, file = await find()
        pieces = tenant_files.content(file)
        first = await anext(pieces, b"")
    except GatewayError as err:
        return error_response(err, http)
    except ContentLost:
        return error_response(lost_error(), http)
    except (DatabaseDown, ContentDown):
        return error_response(FilesUnavailable(), http)
    answer = web.StreamResponse(headers={**identity_headers(http), "content-disposition": "attachment"})
    answer.content_type, answer.content_length = content_type, file.bytes

    async def send(piece: bytes) -> None:
        async with asyncio.timeout(unread_seconds_max):
            await answer.write(piece)

    await answer.prepare(http)
    try:
        await send(first)
        async for piece in pieces:
            await send(piece)
        await answer.write_eof()
    except (TimeoutError, ContentLost, ContentDown):
        # Bytes of the promised length are missing; the cut shows the client that the content is incomplete.
        if http.transport is not None:
            http.transport.abort()
    return answer
