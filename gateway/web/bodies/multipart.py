"""Forms (multipart/form-data, RFC 7578) as they come, and of an upload its fields and the pieces of its one file.

Fields may come after the file, as some SDKs send them: what they say is known when the content has been read.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from gateway.domain.errors import BadRequest, BodyTimeout, UnsupportedEncoding

FIELDS_MAX = 16
FIELD_BYTES_MAX = 4096
PIECE_BYTES = 256 * 1024
NAME_MAX = 255


class MultipartForm:
    """One request's, part by part. `idle_seconds_max`: longest wait for more of it.

    Raises BadRequest, BodyTimeout, UnsupportedEncoding.
    """

    def __init__(self, http: web.Request, idle_seconds_max: float) -> None:
        self._http = http
        self._idle_seconds_max = idle_seconds_max

    async def parts(self) -> AsyncIterator[BodyPartReader]:
        """Each is to be read before the next one comes."""
        if self._http.content_type != "multipart/form-data":
            raise BadRequest("A file is sent as multipart/form-data.")
        if self._http.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise UnsupportedEncoding(self._http.headers["Content-Encoding"])
        with self._readable():
            reader = await self._http.multipart()
        while part := await self._next(reader):
            yield part

    async def piece(self, part: BodyPartReader) -> bytes:
        """More of its content; empty at its end."""
        with self._readable():
            async with asyncio.timeout(self._idle_seconds_max):
                while not part.at_eof():
                    # An empty one is no end: what came may be the beginning of a boundary.
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


class FileUpload:
    """The one file of a form. `fields`, `name`: known when its content has been read."""

    def __init__(self, http: web.Request, idle_seconds_max: float) -> None:
        self.fields: dict[str, str] = {}
        self.name: str | None = None
        self._form = MultipartForm(http, idle_seconds_max)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The file's content. Raises what MultipartForm raises."""
        async for part in self._form.parts():
            if part.name == "file":
                if self.name is not None:
                    raise BadRequest("Only one file can be sent at a time.", param="file")
                self.name = _file_name(part.filename)
                while piece := await self._form.piece(part):
                    yield piece
            else:
                self.fields[part.name or ""] = await self._field(part)
                if len(self.fields) > FIELDS_MAX:
                    raise BadRequest(f"The request has more than {FIELDS_MAX} fields.")
        if self.name is None:
            raise BadRequest("The request must have a file.", param="file")

    async def _field(self, part: BodyPartReader) -> str:
        held = b""
        while piece := await self._form.piece(part):
            held += piece
            if len(held) > FIELD_BYTES_MAX:
                raise BadRequest(
                    f"A field of the form has more than {FIELD_BYTES_MAX} bytes.", param=part.name
                )
        return held.decode("utf-8", "replace")


def _file_name(said: str | None) -> str:
    """What it is called: without a path, or what no database takes."""
    text = (said or "upload").encode("utf-8", "replace").decode()
    return (
        "".join(c for c in text.replace("\\", "/").rsplit("/", 1)[-1] if c.isprintable())[:NAME_MAX]
        or "upload"
    )
