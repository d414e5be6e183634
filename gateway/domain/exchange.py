"""Exchange: the promise of one HTTP exchange with a client, as the pipeline sees it.

The pipeline knows no HTTP library: it reads a key and a request, and writes an answer. `web/` implements this.
"""

from collections.abc import Mapping
from typing import Protocol

from gateway.domain.errors import GatewayError
from gateway.domain.request import InferenceRequest, Surface, QueueHeaders
from gateway.domain.tenant import Tenant
from gateway.settings.types import Address


class Exchange(Protocol):
    @property
    def id(self) -> str:
        """Names the request in headers, logs, traces, and at the worker."""
        ...

    @property
    def surface(self) -> Surface:
        """The API that was called."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The caller's W3C trace context."""
        ...

    @property
    def api_key(self) -> str | None:
        """The API key as presented; None if there is none."""
        ...

    @property
    def caller(self) -> tuple[str, str] | None:
        """Tenant and key of somebody who was let in before, whose work this is now; None: the key says who asks."""
        ...

    @property
    def idempotency_key(self) -> str | None:
        """The client's `Idempotency-Key`. Raises BadRequest for one that is none."""
        ...

    @property
    def queue_headers(self) -> QueueHeaders:
        """What it asks of the queue. Raises BadRequest."""
        ...

    @property
    def address(self) -> Address | None:
        """Where the client is; None if nobody knows."""
        ...

    @property
    def started(self) -> bool:
        """Has anything been sent?"""
        ...

    async def request(self, tenant: Tenant) -> InferenceRequest:
        """The body, decoded. Raises BadRequest, UnsupportedEncoding, PayloadTooLarge, BodyTimeout, Overloaded."""
        ...

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """The prompt has so many tokens, as far as is known before a worker has seen it.

        `output_tokens_max`: the bound of its answer, where it is not the client's.
        """
        ...

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """A streamed answer begins."""
        ...

    async def comment(self) -> None:
        """A sign of life before a streamed answer begins, which begins it. Raises ConnectionResetError."""
        ...

    async def write(self, data: bytes) -> None:
        """More of a streamed answer. Raises ConnectionResetError when the client has left, or no longer reads."""
        ...

    async def end(self) -> None:
        """A streamed answer is complete."""
        ...

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        """A whole answer at once."""
        ...

    async def fail(self, error: GatewayError) -> None:
        """The error in the API's own shape: as an answer, or as the last frame of a stream that has started.

        A client that is gone is no error here.
        """
        ...
