"""The dialect of OpenAI's own APIs: workers have the same API, so bytes pass unchanged."""

import asyncio
from collections.abc import Mapping

from gateway.domain.errors import GatewayError
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.web.bodies.body_decoding import LONG_BYTES
from gateway.web.openai.inference_requests import decode_openai_request


class OpenAIDialect:
    """The dialect of an OpenAI API: requests are decoded, answers and streams pass unchanged."""

    translates_answers = False
    """False: the worker's answers pass as they are."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """Return the request in a body. Raises BadRequest that names the field."""
        if len(body) <= LONG_BYTES:
            return decode_openai_request(self.surface, body)
        return await asyncio.to_thread(decode_openai_request, self.surface, body)

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """Do nothing: answers of this API do not depend on the counts."""

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers unchanged."""
        return headers if isinstance(headers, dict) else dict(headers)

    def stream_start(self) -> bytes:
        """Return nothing, since the worker's stream passes unchanged."""
        return b""

    def stream_chunk(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data

    async def stream_end(self) -> bytes:
        """Return nothing: the worker's stream has its own end."""
        return b""

    async def answer_body(self, body: bytes) -> bytes:
        """Return the body unchanged."""
        return body

    def error_body(self, error: GatewayError) -> bytes:
        """Return the error in OpenAI's shape."""
        return error.body()

    def error_event(self, error: GatewayError) -> bytes:
        """Return the error as a server-sent event in OpenAI's shape."""
        return error.server_sent_event()
