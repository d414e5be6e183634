"""The interface of one HTTP exchange with a client for the request pipeline; `gateway/web` implements it.

The pipeline depends on no HTTP library: it reads credentials and a request, and writes an answer.
"""

from collections.abc import Mapping
from typing import Protocol

from gateway.domain.errors import GatewayError
from gateway.domain.memory_budget import MemoryLease
from gateway.domain.request import InferenceRequest, QueueHeaders, Surface
from gateway.domain.tenant import Tenant
from gateway.settings.types import Address
from workers.carrier import Carrier


class Exchange(Protocol):
    """One HTTP request of a client and the answer to it, independent of the API and the HTTP library."""

    @property
    def id(self) -> str:
        """The request's id in headers, logs and traces, and at the worker."""
        ...

    @property
    def surface(self) -> Surface:
        """The API that was called."""
        ...

    @property
    def memory(self) -> MemoryLease:
        """The memory that the request takes of the gateway; it is released when the request ends."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The client's W3C trace context."""
        ...

    @property
    def tracestate(self) -> str | None:
        """What vendors add to the client's trace context; read only where there is a `traceparent`."""
        ...

    @property
    def batch(self) -> str:
        """The id of the batch that the request is a row of; empty for other requests."""
        ...

    @property
    def api_key(self) -> str | None:
        """The API key as presented; None where the request has none. Raises Unauthenticated for different ones."""
        ...

    @property
    def caller(self) -> tuple[str, str] | None:
        """The ids of tenant and key for work that was authenticated earlier, such as a batch; else None."""
        ...

    @property
    def idempotency_key(self) -> str | None:
        """The client's `Idempotency-Key`. Raises BadRequest for a malformed one."""
        ...

    @property
    def queue_headers(self) -> QueueHeaders:
        """The client's headers that concern the queue. Raises BadRequest."""
        ...

    @property
    def address(self) -> Address | None:
        """The client's IP address; None where it is unknown."""
        ...

    @property
    def carrier(self) -> Carrier | None:
        """What carries the request to its worker in place of the gateway; None: the gateway does it."""
        ...

    @property
    def started(self) -> bool:
        """Whether any part of the answer has been sent."""
        ...

    @property
    def moved(self) -> bool:
        """Whether the request has moved to another cell, which serves and records it."""
        ...

    async def move_to_cell(self, cell: str, tenant: Tenant) -> bool:
        """Relay the request to the cell that the tenant belongs to; return False if it is to be served here.

        Raises CellUnavailable, BadRequest, ConnectionResetError.
        """
        ...

    async def read_request(self, tenant: Tenant) -> InferenceRequest:
        """Read and decode the request body.

        Raises BadRequest, UnsupportedEncoding, PayloadTooLarge, BodyTimeout, Overloaded.
        """
        ...

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """Record the prompt's token count for answers that report it before the worker has answered.

        Args:
            prompt_tokens: Tokens of the prompt, counted or estimated by the gateway.
            output_tokens_max: The bound of the answer, where it differs from the client's.
        """
        ...

    def prepare_stream(self, headers: Mapping[str, str]) -> None:
        """Do what can be done of `begin` in advance, while a worker computes; the headers are those of `begin`."""
        ...

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Begin a streamed answer by sending its status and headers."""
        ...

    async def comment(self) -> None:
        """Send an SSE comment to a waiting client; the first one begins the streamed answer.

        Raises ConnectionResetError.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Send the next bytes of a streamed answer.

        Raises ConnectionResetError when the client has disconnected, or no longer reads.
        """
        ...

    @property
    def writes_at_once(self) -> bool:
        """Whether `write_at_once` may be called now: the stream has begun, and nothing waits for its client."""
        ...

    def write_at_once(self, data: bytes) -> None:
        """Send the next bytes of a streamed answer; call it only where `writes_at_once` is True.

        Raises WorkerError for bytes that cannot be translated to the client's API.
        """
        ...

    async def end(self, last: bytes = b"") -> None:
        """Complete a streamed answer; `last` are bytes of it that leave together with its end."""
        ...

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a complete answer that is not streamed."""
        ...

    async def fail(self, error: GatewayError) -> None:
        """Send an error in the API's own shape: as the answer, or as the last event of a stream that has begun.

        It does not raise when the client has disconnected.
        """
        ...
