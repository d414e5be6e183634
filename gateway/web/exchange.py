"""The Exchange protocol (gateway/domain/exchange.py) over HTTP: one request of a client, and its answer.

The request is aiohttp's, or a DirectRequest (gateway/web/direct), which has what is needed of one.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import cast

from aiohttp import web

from gateway.cells.hop import HEADER as HOP
from gateway.domain.errors import (
    BadRequest,
    GatewayError,
    WorkerError,
)
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import InferenceRequest, QueueHeaders, Surface
from gateway.domain.tenant import Tenant
from gateway.settings.types import Address
from gateway.web.bodies.inference_body import decode_inference_body
from gateway.web.bodies.whole_body import whole_body
from gateway.web.cell_relay import CELL, CellRelay, answer_headers, relayed_chunks
from gateway.web.client_address import FindAddress
from gateway.web.dialect import Dialect
from gateway.web.direct.answer import AnswerHead, DirectAnswer
from gateway.web.direct.request import DirectRequest
from gateway.web.queue_headers import parse_queue_headers
from gateway.web.request_identity import REQUEST_ID, SERVER, new_request_id, presented_key, set_caller
from gateway.web.unread_watch import UnreadWatch

IDEMPOTENCY_KEY_LENGTH_MAX = 255
COMMENT = b": waiting\n\n"
UNWATCHED_BYTES_MAX = 32 * 1024
"""Bytes that never wait for the client where none are buffered: a transport pauses beyond 64 KiB."""
PIECE_BYTES = 1024**2
"""A longer answer is sent in pieces of this size: to write it at once would copy all of it."""
TRANSLATED_BYTES_MAX = 16 * 1024**2
"""The longest whole answer that is translated, since a translation decodes all of it: no model writes so much."""
NO_CELL_HEADERS: Mapping[str, str] = MappingProxyType({})
STREAM_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
EVENT_STREAM_HEADERS = {**STREAM_HEADERS, "content-type": "text/event-stream"}


class OneWriteAnswer(web.StreamResponse):
    """An answer whose head leaves together with its first bytes, as one write."""

    _send_headers_immediately = False


class HttpExchange:
    """One HTTP request and its answer: an implementation of Exchange, the pipeline's interface."""

    caller: None = None
    """None: the tenant of an HTTP request follows from its API key."""
    batch = ""
    """Empty: an HTTP request is no row of a batch."""
    carrier: None = None
    """None: the gateway relays the request itself."""
    response: web.StreamResponse | None = None
    """What the HTTP handler returns once the request has been served."""
    _direct_answer: DirectAnswer | None = None
    """The same answer, if the request is a DirectRequest."""
    _stream_head: AnswerHead | None = None
    """The head of a stream that may come; see prepare_stream."""
    moved = False
    """Whether another cell serves the request."""
    closes_connection = False
    """Whether the answer is the last of its connection: the gateway will stop, others serve new connections."""
    _queue_headers: QueueHeaders | None = None
    _unread_watch: UnreadWatch | None = None

    def __init__(
        self,
        http: web.Request,
        dialect: Callable[[str], Dialect],
        *,
        find_address: FindAddress,
        memory: MemoryBudget,
        body_bytes_max: int,
        body_seconds_max: float,
        unread_seconds_max: float,
        cells: CellRelay | None = None,
        logged: bool = True,
    ) -> None:
        """Begin an exchange.

        Args:
            http: The request, or a DirectRequest.
            dialect: Makes the dialect of the called API for a request id.
            find_address: Returns the client's address.
            memory: The memory that all requests share.
            body_bytes_max: Largest body.
            body_seconds_max: Time in which the whole body has to arrive.
            unread_seconds_max: A client that reads nothing of its answer for so long is treated as gone.
            cells: Relays requests of other cells' tenants; None without cells.
            logged: Whether there is an access log, which gets the request id and the tenant with the request.
        """
        self.id = new_request_id()
        self._dialect = dialect(self.id)
        self.surface: Surface = self._dialect.surface
        """The API that was called."""
        self.set_prompt_tokens = self._dialect.set_prompt_tokens
        """Records the prompt's token count for the answer, and the bound of the answer if it is the gateway's."""
        self.traceparent: str | None = http.headers.get("traceparent")
        """The caller's W3C trace context."""
        self._cells = cells
        self._cell_headers = NO_CELL_HEADERS
        self._http = http
        self._logged = logged
        if logged:
            http[REQUEST_ID] = self.id
        self._find_address = find_address
        self._received_at = time.monotonic()
        self.memory = MemoryLease(memory)
        """The memory that the request takes of the gateway."""
        self._body_bytes_max = body_bytes_max
        self._body_seconds_max = body_seconds_max
        self._unread_seconds_max = unread_seconds_max

    @property
    def tracestate(self) -> str | None:
        """The `tracestate` header, of which several are one list."""
        return ",".join(self._http.headers.getall("tracestate", ())) or None

    @property
    def api_key(self) -> str | None:
        """The API key as presented; None if there is none. Raises Unauthenticated for different ones."""
        return presented_key(self._http.headers)

    @property
    def idempotency_key(self) -> str | None:
        """The `Idempotency-Key` header. Raises BadRequest for a malformed key."""
        key = self._http.headers.get("idempotency-key")
        return key if key is None else checked_idempotency_key(key)

    @property
    def queue_headers(self) -> QueueHeaders:
        """The headers that concern the queue. Raises BadRequest."""
        if self._queue_headers is None:
            self._queue_headers = parse_queue_headers(self._http.headers)
        return self._queue_headers

    @property
    def address(self) -> Address | None:
        """The client's address; None if it is unknown. Raises BadRequest for a forged header of another cell."""
        return self._find_address(self._http)

    @property
    def started(self) -> bool:
        """Whether the answer has begun: its status and headers are fixed, and leave with its first bytes."""
        return self.response is not None and self.response.prepared

    async def move_to_cell(self, cell: str, tenant: Tenant) -> bool:
        """Relay the request to the cell of its tenant; return False if it is to be served here.

        Raises CellUnavailable, BadRequest, and ConnectionResetError when the client left or stopped reading, or the
        other cell broke the answer off.
        """
        assert self._cells is not None
        self._cell_headers = {CELL: cell}
        if HOP in self._http.headers:
            self._cells.hop_address(self._http)
            return False
        if cell == self._cells.own_cell:
            return False
        if self._logged:
            set_caller(self._http, tenant)
        self.moved = True  # Also of a client that leaves before there is an answer.
        answer = None
        try:
            answer = await self._cells.open(self._http, cell, self._find_address)
        except GatewayError:
            self.moved = False
            raise
        if answer is None:
            self.moved = False
            return False
        async with answer:
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=answer_headers(answer.headers, cell)
            )
            self.response = response
            if self.closes_connection:
                response.force_close()
            await response.prepare(self._http)
            async for chunk in relayed_chunks(answer, self._http):
                await self._await_client_read(response.write(chunk), len(chunk))
        await self._await_client_read(response.write_eof(), 0)
        return True

    async def read_request(self, tenant: Tenant) -> InferenceRequest:
        """Return the decoded body of the request.

        Raises BadRequest, UnsupportedEncoding, PayloadTooLarge, BodyTimeout, Overloaded.
        """
        if self._logged:
            set_caller(self._http, tenant)
        body = await whole_body(self._http, self.memory, self._body_bytes_max, self._body_seconds_max)
        return await decode_inference_body(body, self._dialect, tenant, self.memory)

    def prepare_stream(self, headers: Mapping[str, str]) -> None:
        """Make the head of a streamed answer in advance, as far as it is known."""
        if self.response is None and not self._dialect.translates_answers:
            http: object = self._http
            if isinstance(http, DirectRequest):
                self._stream_head = self._direct_head(http, 200, headers, EVENT_STREAM_HEADERS)

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Start a streamed answer, unless a comment has started it already."""
        if self.response is None:
            http: object = self._http
            if self._stream_head is not None and status == 200 and isinstance(http, DirectRequest):
                self._begin_direct(http, self._stream_head)
            else:
                await self._begin(status, headers, {**STREAM_HEADERS, "content-type": content_type})
        if self._dialect.translates_answers and (start := self._dialect.stream_start()):
            await self._send(start)

    async def comment(self) -> None:
        """Send an SSE comment as a keep-alive, which starts the stream. Raises ConnectionResetError."""
        if not self.started:
            await self._begin(200, {}, EVENT_STREAM_HEADERS)
        await self._send(COMMENT)

    async def write(self, data: bytes) -> None:
        """Send more of a streamed answer. Raises ConnectionResetError when the client left or stopped reading."""
        translated = self._dialect.stream_chunk(data)
        if translated:
            assert self.response is not None
            await self._await_client_read(self.response.write(translated), len(translated))

    @property
    def writes_at_once(self) -> bool:
        """Whether `write_at_once` may be called now."""
        transport = self._http.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        return self._direct_answer is not None

    def write_at_once(self, data: bytes) -> None:
        """Send more of a streamed answer to a client that need not be waited for. Raises ConnectionResetError."""
        if self._dialect.translates_answers:
            data = self._dialect.stream_chunk(data)
        if data:
            assert self._direct_answer is not None
            self._direct_answer.send(data)

    async def end(self, last: bytes = b"") -> None:
        """Complete a streamed answer with its last bytes."""
        if self._dialect.translates_answers:
            last = self._dialect.stream_chunk(last) if last else b""
            last += await self._dialect.stream_end()
        assert self.response is not None
        await self._send_last(self.response, last)

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer at once."""
        if self.started:
            raise WorkerError  # A stream was asked for, and its comments have been sent already.
        if self._dialect.translates_answers:
            if len(body) > TRANSLATED_BYTES_MAX:
                raise WorkerError
            body = await self._dialect.answer_body(body)
        await self._answer(status, content_type, body, headers)

    async def _send(self, data: bytes) -> None:
        assert self.response is not None
        await self._await_client_read(self.response.write(data), len(data))

    async def _answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        of_answer = {"content-type": content_type, "content-length": str(len(body))}
        response = await self._begin(status, headers, of_answer)
        # Sent here: the records that are written afterwards do not keep the client waiting.
        last = max(0, len(body) - 1) // PIECE_BYTES * PIECE_BYTES
        for start in range(0, last, PIECE_BYTES):
            await self._send(body[start : start + PIECE_BYTES])
        await self._send_last(response, body[last:])

    async def _begin(
        self, status: int, of_request: Mapping[str, str], of_answer: Mapping[str, str]
    ) -> web.StreamResponse:
        """Make the head of the answer, which leaves together with the first bytes."""
        http: object = self._http
        if isinstance(http, DirectRequest):
            return self._begin_direct(http, self._direct_head(http, status, of_request, of_answer))
        headers = self._headers(of_request, of_answer, with_duration=True)
        response = self.response = OneWriteAnswer(status=status, headers=headers)
        if self.closes_connection:
            response.force_close()
        await response.prepare(self._http)
        return response

    def _begin_direct(self, http: DirectRequest, head: AnswerHead) -> web.StreamResponse:
        """Begin the answer to a DirectRequest with this head."""
        processing_ms = None if self._dialect.translates_answers else self._processing_ms()
        http.answer = self._direct_answer = DirectAnswer(http.connection, head, processing_ms)
        response = self.response = cast(web.StreamResponse, http.answer)
        return response

    def _direct_head(
        self,
        http: DirectRequest,
        status: int,
        of_request: Mapping[str, str],
        of_answer: Mapping[str, str],
    ) -> AnswerHead:
        """Return the head of an answer to a DirectRequest."""
        headers = self._headers(of_request, of_answer, with_duration=self._dialect.translates_answers)
        headers.update(http.answer_headers)
        return AnswerHead(status, headers, keep_alive=not self.closes_connection)

    async def fail(self, error: GatewayError) -> None:
        """Send the error in the API's own shape: as an answer, or as the last event of a stream that has started.

        A client that is gone is no error here.
        """
        if not self.started:
            with suppress(ConnectionResetError):
                await self._answer(
                    error.status, "application/json", self._dialect.error_body(error), error.headers()
                )
            return
        assert self.response is not None
        # The stream ends here, without [DONE]. The connection stays open: the headers sent before promise that, and
        # a client that has read to the end may already be sending its next request on it.
        with suppress(ConnectionResetError):
            await self._send(self._dialect.error_event(error))
            await self._await_client_read(self.response.write_eof(), 0)

    def close(self) -> None:
        """End the watch over the client; the request has been served or has failed."""
        if self._unread_watch is not None:
            self._unread_watch.close()

    async def _send_last(self, response: web.StreamResponse, data: bytes) -> None:
        """Send the last bytes of an answer."""
        if len(data) <= UNWATCHED_BYTES_MAX and self.writes_at_once:
            assert self._direct_answer is not None
            self._direct_answer.send(data, last=True)
        else:
            await self._await_client_read(response.write_eof(data), len(data))

    async def _await_client_read(self, writing: Awaitable[None], size: int) -> None:
        """Wait until the socket takes what is written; what may have to wait for the client is watched."""
        transport = self._http.transport
        if size <= UNWATCHED_BYTES_MAX and transport is not None and not transport.get_write_buffer_size():
            await writing  # It never waits: all of this fits the transport's buffer.
            return
        if self._unread_watch is None:
            self._unread_watch = UnreadWatch(self._http, self._unread_seconds_max)
        await self._unread_watch.wait(writing)

    def _headers(
        self, of_request: Mapping[str, str], of_answer: Mapping[str, str], *, with_duration: bool
    ) -> dict[str, str]:
        """Return the headers of an answer under the names of the client's API.

        `with_duration`: whether `openai-processing-ms` is one of them.
        """
        headers = {
            "server": SERVER,
            "x-request-id": self.id,
            **self._cell_headers,
            **of_request,
            **of_answer,
        }
        if with_duration:
            headers["openai-processing-ms"] = str(self._processing_ms())
        return self._dialect.answer_headers(headers) if self._dialect.translates_answers else headers

    def _processing_ms(self) -> int:
        """Return the milliseconds since the request came."""
        return int((time.monotonic() - self._received_at) * 1000)


def checked_idempotency_key(key: str) -> str:
    """Return an `Idempotency-Key`. Raises BadRequest for a malformed one."""
    if not (1 <= len(key) <= IDEMPOTENCY_KEY_LENGTH_MAX and key.isascii() and key.isprintable()):
        raise BadRequest(
            f"An Idempotency-Key has 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} printable ASCII characters."
        )
    return key
