"""Reads forms (multipart/form-data, RFC 7578) part by part, and file uploads with their fields.

Some SDKs send fields after the file, so the fields of an upload are complete only when its content has been read.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from gateway.domain.errors import BadRequest, BodyTimeout
from gateway.domain.request_headers import require_identity
from gateway.web.bodies.expectation import ask_for_body

FIELDS_MAX = 16
FIELD_BYTES_MAX = 4096
PIECE_BYTES = 256 * 1024
"""The bytes of content that are read at a time."""
LINES_MAX = 4096
"""The most lines of a form outside its contents: boundaries, headers, and text before the first boundary."""
FILE_NAME_LENGTH_MAX = 255


class MultipartForm:
    """The form of one request, read part by part.

    `idle_seconds_max` is the longest wait for more of the form. The methods raise BadRequest, BodyTimeout and
    UnsupportedEncoding.
    """

    def __init__(self, http: web.Request, idle_seconds_max: float) -> None:
        self._http = http
        self._idle_seconds_max = idle_seconds_max

    async def parts(self) -> AsyncIterator[BodyPartReader]:
        """Yield the parts; each has to be read before the next one."""
        if self._http.content_type != "multipart/form-data":
            raise BadRequest("A file is sent as multipart/form-data.")
        require_identity(self._http.headers)
        await ask_for_body(self._http)
        with self._readable():
            reader = MultipartReader(self._http.headers, cast(StreamReader, _FewLines(self._http.content)))
        while part := await self._next(reader):
            yield part

    async def piece(self, part: BodyPartReader) -> bytes:
        """Return more of a part's content; nothing at its end."""
        with self._readable():
            async with asyncio.timeout(self._idle_seconds_max):
                while not part.at_eof():
                    # An empty piece is not the end: the bytes read may be the beginning of a boundary.
                    if piece := await part.read_chunk(PIECE_BYTES):
                        return bytes(piece)
        return b""

    async def _next(self, reader: MultipartReader) -> BodyPartReader | None:
        with self._readable():
            async with asyncio.timeout(self._idle_seconds_max):
                part = await reader.next()
        if isinstance(part, MultipartReader):
            raise BadRequest("A part of the form cannot be a form itself.")
        return part

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise BodyTimeout(self._idle_seconds_max) from None
        except (ValueError, RuntimeError, AssertionError, HttpProcessingError, RequestPayloadError) as err:
            raise BadRequest("The form cannot be read.") from err


class _FewLines:
    """The content of a form, limited to LINES_MAX lines but not in bytes.

    Lines that have arrived are read without a pause, so millions of them would stall the event loop.
    """

    def __init__(self, content: StreamReader) -> None:
        self._content = content
        self._lines = 0

    async def readline(self, **bounds: int) -> bytes:
        """Return the next line. Raises ValueError after LINES_MAX of them."""
        self._lines += 1
        if self._lines > LINES_MAX:
            raise ValueError("too many lines")
        return await self._content.readline(**bounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


class FileUpload:
    """A form with one file and some fields.

    `fields` and `name` are complete when the content has been read.
    """

    def __init__(self, http: web.Request, idle_seconds_max: float) -> None:
        self.fields: dict[str, str] = {}
        self.name: str | None = None
        self._form = MultipartForm(http, idle_seconds_max)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the file's content. Raises what MultipartForm raises."""
        parts = 0
        async for part in self._form.parts():
            parts += 1
            if parts > FIELDS_MAX + 1:  # Fields may have the same name.
                raise BadRequest(f"The request has more than {FIELDS_MAX} fields.")
            if part.name == "file":
                if self.name is not None:
                    raise BadRequest("Only one file can be sent at a time.", param="file")
                self.name = _file_name(part.filename)
                while piece := await self._form.piece(part):
                    yield piece
            else:
                self.fields[part.name or ""] = await self._field(part)
        if self.name is None:
            raise BadRequest("The request must have a file.", param="file")

    async def _field(self, part: BodyPartReader) -> str:
        value = b""
        while piece := await self._form.piece(part):
            value += piece
            if len(value) > FIELD_BYTES_MAX:
                raise BadRequest(
                    f"A field of the form has more than {FIELD_BYTES_MAX} bytes.", param=part.name
                )
        return value.decode("utf-8", "replace")


def _file_name(given: str | None) -> str:
    """Return the name of a file, without a path and without characters that databases refuse."""
    text = (given or "upload").encode("utf-8", "replace").decode()
    return (
        "".join(c for c in text.replace("\\", "/").rsplit("/", 1)[-1] if c.isprintable())[
            :FILE_NAME_LENGTH_MAX
        ]
        or "upload"
    )
