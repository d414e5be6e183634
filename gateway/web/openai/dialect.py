"""The dialect of OpenAI's own APIs: workers speak the same API, so bytes pass unchanged."""

from collections.abc import Mapping
from functools import partial

from gateway.domain.errors import GatewayError
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.web.bodies.body_decoding import unhurried
from gateway.web.openai.inference_requests import decode_request


class OpenAIDialect:
    """As it comes."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        return await unhurried(body, partial(decode_request, self.surface))

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        pass

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return dict(headers)

    def stream_start(self) -> bytes:
        return b""

    def stream_chunk(self, data: bytes) -> bytes:
        return data

    async def stream_end(self) -> bytes:
        return b""

    async def answer_body(self, body: bytes) -> bytes:
        return body

    def error_body(self, error: GatewayError) -> bytes:
        return error.body()

    def error_event(self, error: GatewayError) -> bytes:
        return error.frame()
