"""The dialect of an API: the translation of its requests and answers to and from the workers' chat completions.

    client's body  -- decode_request -->  fields for a worker
    client's bytes <-- stream_start, stream_chunk, stream_end | answer_body <--  the worker's bytes
    client's error <-- error_body, error_event <--  GatewayError

One dialect is made for each exchange. OpenAI's own passes bytes on unchanged.
"""

from collections.abc import Mapping
from typing import Protocol

from gateway.domain.errors import GatewayError
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant


class Dialect(Protocol):
    """The translation of one exchange between a client's API and the workers' API."""

    @property
    def surface(self) -> Surface:
        """The API that was called."""
        ...

    @property
    def translates_answers(self) -> bool:
        """Whether answers and streams differ from the worker's; if not, only requests and errors are translated."""
        ...

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """Return the request in a body. Raises BadRequest, and NotFound for an object that the body refers to."""
        ...

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """Record token counts for the answer; see Exchange.set_prompt_tokens."""
        ...

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return an answer's headers, which have OpenAI's names, under this API's names."""
        ...

    def stream_start(self) -> bytes:
        """Return the first bytes of a stream."""
        ...

    def stream_chunk(self, data: bytes) -> bytes:
        """Translate the next bytes of a worker's stream, which may be cut at any byte."""
        ...

    async def stream_end(self) -> bytes:
        """Return the last bytes of a stream, after the worker's stream has ended."""
        ...

    async def answer_body(self, body: bytes) -> bytes:
        """Translate an answer that is not streamed. Raises WorkerError for a malformed one."""
        ...

    def error_body(self, error: GatewayError) -> bytes:
        """Return the body of an error response."""
        ...

    def error_event(self, error: GatewayError) -> bytes:
        """Return the last event of a stream that cannot continue."""
        ...
