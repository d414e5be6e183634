"""Reads the body of POST /v1/messages/batches as it arrives; each of its requests becomes a line of a file.

    {"requests": [ {"custom_id": "a", "params": {..}}, {"custom_id": "b", "params": {..}} ]}
    {"requests": [                 ""                ,                 ""                ]}      the frame

One request is in memory at a time, whatever the body's size. The rest of the body is the frame, with an empty
string in place of each request; it is decoded at the end. An empty string cannot merge with the text beside it into
another valid value, so the frame is valid JSON if and only if the whole body was.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from hashlib import blake2b
from typing import Annotated

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from gateway.domain.errors import BadRequest, BodyTimeout
from gateway.domain.memory_budget import MemoryLease
from gateway.domain.request_headers import require_identity
from gateway.web.bodies.expectation import ask_for_body
from gateway.web.bodies.typed_bodies import decode_typed_body
from radix_cache.loop_yield import LoopYielder

ENDPOINT = "/v1/messages"
"""The endpoint of every request of a message batch."""

LINE_OVERHEAD_BYTES_MAX = 64
"""The most bytes that a line may have beyond its request."""

FRAME_BYTES_MAX = 1024 * 1024
"""The most bytes of a body outside its requests."""
SLICE_BYTES = 32 * 1024
"""The number of bytes that are scanned at a time, in a fraction of a millisecond."""

_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.S)
_MARK = re.compile(rb'["{}\[\]]')
_OPENED = re.compile(rb'"requests"\s*:\s*\[\Z')
_OPENED_BYTES_MAX = 256
_BACKSLASH = ord("\\")


class MessageBatchRequest(msgspec.Struct, frozen=True):
    """One request of a message batch. Its `params` are validated only when the request runs, as at Anthropic."""

    custom_id: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: msgspec.Raw


class _Frame(msgspec.Struct, frozen=True):
    requests: list[str]


_REQUEST = msgspec.json.Decoder(MessageBatchRequest)
_FRAME = msgspec.json.Decoder(_Frame)


class BatchRequestSplitter:
    """Splits the body of a batch into its requests.

    `feed` takes the body piece by piece and yields the requests that are complete; `end` checks the frame.
    """

    def __init__(self, request_bytes_max: int) -> None:
        self._request_bytes_max = request_bytes_max
        self._frame = bytearray()
        self._request: bytearray | None = None
        self._found = 0
        self._depth = 0
        self._quoted = self._escaped = self._listed = False

    @property
    def bytes_held(self) -> int:
        """Bytes in memory."""
        return len(self._frame) + len(self._request or b"")

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the requests that these bytes complete. Raises BadRequest for a request that is too long."""
        at = taken = 0
        while at < len(data):
            if self._quoted:
                at = self._through_string(data, at)
                continue
            found = _MARK.search(data, at)
            if found is None:
                break
            at, mark = found.end(), found[0]
            if mark == b'"':
                self._quoted = True
            elif mark in b"{[":
                self._depth += 1
                if self._listed and self._depth == 3 and mark == b"{":
                    self._keep(data[taken : at - 1])
                    taken, self._request = at - 1, bytearray()
                elif self._depth == 2:
                    self._keep(data[taken:at])
                    taken = at
                    self._listed = _OPENED.search(self._frame[-_OPENED_BYTES_MAX:]) is not None
            else:
                self._depth -= 1
                if self._depth == 2 and self._request is not None:
                    self._keep(data[taken:at])
                    taken, ended, self._request = at, bytes(self._request), None
                    self._found += 1
                    self._keep(b'""')
                    yield ended
                elif self._depth < 2:
                    self._listed = False
        self._keep(data[taken:])

    def end(self) -> None:
        """Check the frame at the end of the body. Raises BadRequest if the body was no list of requests."""
        frame, _ = decode_typed_body(bytes(self._frame) + bytes(self._request or b""), _FRAME)
        if len(frame.requests) != self._found or any(frame.requests):
            raise BadRequest("requests: expected one list of objects.", param="requests")

    def _through_string(self, data: bytes, at: int) -> int:
        """Return the position after the end of the open string, or after the data."""
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.match(data, at)
        assert found is not None
        end = found.end()
        if end < len(data):
            # An unmatched backslash is the last byte: the character that it escapes has not arrived yet.
            self._escaped = data[end] == _BACKSLASH
            self._quoted = self._escaped
        return end + 1

    def _keep(self, data: bytes) -> None:
        if self._request is not None:
            self._request += data
            if len(self._request) > self._request_bytes_max:
                raise BadRequest(
                    f"requests.{self._found}: the request has more than {self._request_bytes_max} bytes.",
                    param=f"requests.{self._found}",
                )
        else:
            self._frame += data
            if len(self._frame) > FRAME_BYTES_MAX:
                raise BadRequest(f"The body has more than {FRAME_BYTES_MAX} bytes outside its requests.")


class MessageBatchBody:
    """Reads the body of one message batch."""

    def __init__(
        self,
        http: web.Request,
        memory: MemoryLease,
        *,
        idle_seconds_max: float,
        rows_max: int,
        row_bytes_max: int,
    ) -> None:
        """Begin to read a body.

        Args:
            http: The request.
            memory: The request's share of the memory that all requests share.
            idle_seconds_max: Longest wait for more of the body.
            rows_max: Largest number of requests in a batch.
            row_bytes_max: Largest size of one request, in bytes.
        """
        self.rows = 0
        """Requests that have been read."""
        self._http = http
        self._memory = memory
        self._idle_seconds_max = idle_seconds_max
        self._rows_max = rows_max
        self._splitter = BatchRequestSplitter(row_bytes_max)
        self._seen: set[bytes] = set()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield a line for each request. Raises BadRequest, BodyTimeout, UnsupportedEncoding, Overloaded."""
        require_identity(self._http.headers)
        await ask_for_body(self._http)
        yielder = LoopYielder()
        while piece := await self._piece():
            for start in range(0, len(piece), SLICE_BYTES):
                for request in self._splitter.feed(piece[start : start + SLICE_BYTES]):
                    yield self._line(request)
                self._memory.resize(self._splitter.bytes_held)
                await yielder.yield_if_due()
        self._splitter.end()
        if not self.rows:
            raise BadRequest("requests: expected at least one.", param="requests")

    async def _piece(self) -> bytes:
        try:
            async with asyncio.timeout(self._idle_seconds_max):
                return await self._http.content.readany()
        except TimeoutError:
            raise BodyTimeout(self._idle_seconds_max) from None
        except RequestPayloadError as err:
            raise BadRequest("The body did not arrive as its headers said.") from err

    def _line(self, request: bytes) -> bytes:
        where = f"requests.{self.rows}"
        try:
            _ = request.isascii() or request.decode()
            read = _REQUEST.decode(request)
        except msgspec.ValidationError as err:
            raise BadRequest(f"{where}: {err}.", param=where) from err
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
            raise BadRequest(f"{where}: the request is not JSON.", param=where) from err
        params = bytes(read.params)
        if not params.startswith(b"{"):
            raise BadRequest(f"{where}.params: expected an object.", param=f"{where}.params")
        self.rows += 1
        if self.rows > self._rows_max:
            raise BadRequest(f"A batch has at most {self._rows_max} requests.", param="requests")
        name = blake2b(read.custom_id.encode(), digest_size=16).digest()
        if name in self._seen:
            raise BadRequest(
                f"{where}.custom_id: an earlier request has the same custom_id.", param=f"{where}.custom_id"
            )
        self._seen.add(name)
        # Valid JSON has line breaks only between values.
        params = params.replace(b"\n", b" ").replace(b"\r", b" ")
        return b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n' % (
            read.custom_id.encode(),
            ENDPOINT.encode(),
            params,
        )
