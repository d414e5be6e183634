"""EnvoyExchange: the Exchange of a request that Envoy carries, for the pipeline.

Until Envoy has the head of a worker's answer, an answer can only be sent whole. From then on it is streamed in
place of the worker's.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence

import msgspec

from gateway.domain.errors import BadRequest, BodyTimeout, GatewayError, WorkerError
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.domain.request import InferenceRequest, QueueHeaders
from gateway.domain.tenant import Tenant
from gateway.endpoint_picker.envoy_carrier import EnvoyCarrier
from gateway.endpoint_picker.envoy_request import EnvoyRequest
from gateway.settings.types import Address, Network
from gateway.web.bodies.body_reader import read_body
from gateway.web.bodies.compressed_body import decompress, decompressor_for
from gateway.web.bodies.inference_body import decode_inference_body
from gateway.web.client_address import FORWARDED_FOR, client_address
from gateway.web.dialect import Dialect
from gateway.web.exchange import STREAM_HEADERS, checked_idempotency_key
from gateway.web.queue_headers import parse_queue_headers
from gateway.web.request_identity import SERVER, presented_key
from gateway.web.responses.dialect import ResponsesDialect
from workers.adapters.connection import ConnectionBroken


class EnvoyExchange:
    """An Exchange over the messages of Envoy."""

    caller = None
    """None: the tenant follows from the API key."""
    moved = False
    """False: Envoy takes the request to a worker itself."""
    writes_at_once = False
    """False: each write to Envoy may have to wait."""

    def __init__(
        self,
        request_id: str,
        envoy: EnvoyRequest,
        dialect: Dialect,
        *,
        memory: MemoryBudget,
        trusted: Sequence[Network],
        body_bytes_max: int,
        body_seconds_max: float,
    ) -> None:
        """Begin an exchange; `trusted` are the networks of proxies in front of Envoy."""
        self.id = request_id
        self.surface = dialect.surface
        """The API that was called."""
        self.memory = MemoryLease(memory)
        """The memory that the request takes of the gateway."""
        self.carrier = EnvoyCarrier(envoy)
        self.batch = ""
        """Empty: a carried request is no row of a batch."""
        """Envoy, which takes the request to its first worker."""
        self.set_prompt_tokens = dialect.set_prompt_tokens
        self.started = False
        """Whether any part of the answer was sent."""
        self.tenant: Tenant | None = None
        self.status = 0
        """The status of the answer, once there is one."""
        self.bytes_sent = 0
        self._headers = envoy.request_headers
        self._envoy = envoy
        self._dialect = dialect
        self._trusted = trusted
        self._body_bytes_max = body_bytes_max
        self._body_seconds_max = body_seconds_max
        self._received_at = time.monotonic()
        self._kept: tuple[dict[str, str], bytearray] | None = None
        """Headers and body of an answer that can be sent only at once."""

    @property
    def traceparent(self) -> str | None:
        """The client's W3C trace context."""
        return self._headers.get("traceparent")

    @property
    def tracestate(self) -> str | None:
        """The `tracestate` header, of which several are one list."""
        return ",".join(self._headers.getall("tracestate", ())) or None

    @property
    def api_key(self) -> str | None:
        """The API key as presented; None if there is none. Raises Unauthenticated for different ones."""
        return presented_key(self._headers)

    @property
    def idempotency_key(self) -> str | None:
        """The `Idempotency-Key` header. Raises BadRequest for a malformed key."""
        key = self._headers.get("Idempotency-Key")
        return key if key is None else checked_idempotency_key(key)

    @property
    def queue_headers(self) -> QueueHeaders:
        """The queue options in the headers; comments cannot be sent before a worker was picked."""
        return msgspec.structs.replace(parse_queue_headers(self._headers), comment_seconds=None)

    @property
    def address(self) -> Address | None:
        """The client's address, as Envoy and the proxies in front of it report it; None if it is unknown."""
        return client_address(None, self._headers.getall(FORWARDED_FOR, ()), self._trusted)

    async def move_to_cell(self, cell: str, tenant: Tenant) -> bool:
        """Return False: Envoy has no addresses of other cells, and its requests are served here."""
        return False

    async def read_request(self, tenant: Tenant) -> InferenceRequest:
        """Return the decoded body of the request.

        Raises BadRequest, UnsupportedEncoding, PayloadTooLarge, BodyTimeout, Overloaded.
        """
        self.tenant = tenant
        decompressor = decompressor_for(self._headers)
        try:
            async with asyncio.timeout(self._body_seconds_max):
                body = await read_body(self._envoy.request_body, self._body_bytes_max, self.memory)
        except TimeoutError:
            raise BodyTimeout(self._body_seconds_max) from None
        except ConnectionBroken:
            raise ConnectionResetError("the client left before its request was complete") from None
        if decompressor is not None:
            body = await decompress(body, decompressor, self.memory, self._body_bytes_max)
        request = await decode_inference_body(body, self._dialect, tenant, self.memory)
        if isinstance(self._dialect, ResponsesDialect) and self._dialect.background:
            raise BadRequest("Background responses are not served through this proxy.", param="background")
        return request

    def prepare_stream(self, headers: Mapping[str, str]) -> None:
        """Do nothing: Envoy makes the head of the answer."""

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Start a streamed answer."""
        start = self._dialect.stream_start()
        all_headers = self._answer_headers(headers, {**STREAM_HEADERS, "content-type": content_type})
        await self._begin(status, all_headers)
        if start:
            await self._write(start)

    async def comment(self) -> None:
        """Raise WorkerError: `queue_headers` requests no comments."""
        raise WorkerError

    async def write(self, data: bytes) -> None:
        """Send more of a streamed answer. Raises ConnectionResetError when the client left or stopped reading."""
        translated = self._dialect.stream_chunk(data)
        if translated:
            await self._write(translated)

    def write_at_once(self, data: bytes) -> None:
        """Raise WorkerError: every write has to wait."""
        raise WorkerError

    async def end(self, last: bytes = b"") -> None:
        """Complete a streamed answer with its last bytes."""
        rest = self._dialect.stream_chunk(last) if last else b""
        await self._write(rest + await self._dialect.stream_end(), last=True)

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer at once."""
        translated = await self._dialect.answer_body(body)
        await self._begin(status, self._answer_headers(headers, {"content-type": content_type}))
        await self._write(translated, last=True)

    async def fail(self, error: GatewayError) -> None:
        """Send the error in the API's own shape: as an answer, or as the last event of a started stream."""
        if self.started and self._kept is None:
            await self._write(self._dialect.error_event(error), last=True)
            return
        headers = self._answer_headers(error.headers(), {"content-type": "application/json"})
        body = self._dialect.error_body(error)
        self.started, self.status, self.bytes_sent = True, error.status, len(body)
        await self._envoy.answer_at_once(error.status, headers, body)

    async def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.started, self.status = True, status
        if self._envoy.streams_answers:
            await self._envoy.begin_answer(status, headers)
        else:
            self._kept = headers, bytearray()

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        self.bytes_sent += len(data)
        if self._kept is None:
            await self._envoy.write_answer(data, last=last)
            return
        headers, body = self._kept
        self.memory.reserve(len(data))
        body += data
        if last:
            await self._envoy.answer_at_once(self.status, headers, bytes(body))

    def _answer_headers(self, of_request: Mapping[str, str], of_answer: Mapping[str, str]) -> dict[str, str]:
        return self._dialect.answer_headers(
            {
                "server": SERVER,
                "x-request-id": self.id,
                "openai-processing-ms": str(int((time.monotonic() - self._received_at) * 1000)),
                **of_request,
                **of_answer,
            }
        )
