"""Dialect: what an API's requests and answers look like, where a worker is asked in OpenAI's.

    client's body  -- request -->  fields for a worker
    client's bytes <-- begin, frames, end (streams) | whole <--  the worker's bytes
    client's error <-- error, error_frame <--  GatewayError

One is made for each exchange. OpenAI's own passes bytes on as they are.
"""

from collections.abc import Mapping
from typing import Protocol

from gateway.domain.errors import GatewayError
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant


class Dialect(Protocol):
    @property
    def surface(self) -> Surface:
        """The API that was called."""
        ...

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """What a body asks for. Raises BadRequest, and NotFound for what it refers to."""
        ...

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """See Exchange."""
        ...

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """An answer's headers under this API's names. They come under OpenAI's."""
        ...

    def stream_start(self) -> bytes:
        """What a stream begins with."""
        ...

    def stream_chunk(self, data: bytes) -> bytes:
        """What the worker has streamed, in pieces that may end anywhere."""
        ...

    async def stream_end(self) -> bytes:
        """What a stream ends with; the worker's has ended."""
        ...

    async def answer_body(self, body: bytes) -> bytes:
        """An answer that is no stream. Raises WorkerError for what is none."""
        ...

    def error_body(self, error: GatewayError) -> bytes:
        """The body of a refusal."""
        ...

    def error_event(self, error: GatewayError) -> bytes:
        """The last event of a stream that cannot go on."""
        ...
