"""The Messages API as a dialect, and its error shape for what is refused before there is a request."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from gateway.domain.errors import GatewayError
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.web.anthropic import answers
from gateway.web.anthropic.events import MessageEvents, error_event
from gateway.web.anthropic.requests import decode_count_request, decode_message_request
from gateway.web.bodies.body_decoding import unhurried
from gateway.web.error_response import anthropic_error_body
from gateway.web.openai import chat_completions


class AnthropicDialect:
    """See Dialect. One exchange."""

    surface = Surface.MESSAGES

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._message_id = f"msg_{request_id.removeprefix('req-')}"
        self._model = ""
        self._stops: frozenset[str] = frozenset()
        self._warms = False
        self._cut = answers.CUT
        self._prompt_tokens = 0
        self._events: MessageEvents | None = None

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        read = await unhurried(body, decode_message_request)
        self._model, self._stops, self._warms = read.chat.model, read.stops, read.warms
        return read.chat

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        self._prompt_tokens = prompt_tokens
        self._cut = answers.OUT_OF_CONTEXT if output_tokens_max is not None else answers.CUT

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return answers.headers(dict(headers), datetime.now(UTC))

    def stream_start(self) -> bytes:
        self._events = MessageEvents(
            self._message_id,
            self._model,
            self._prompt_tokens,
            self._stops,
            cut=self._cut,
            mute=self._warms,
        )
        return self._events.begin()

    def stream_chunk(self, data: bytes) -> bytes:
        assert self._events is not None
        return self._events.feed(data)

    async def stream_end(self) -> bytes:
        assert self._events is not None
        return self._events.end()

    async def answer_body(self, body: bytes) -> bytes:
        message = answers.message(
            chat_completions.decode_chat_completion(body), self._message_id, self._stops, self._cut
        )
        unsaid = answers.UNSAID if self._warms else {}
        return msgspec.json.encode({**message, **unsaid, "model": message["model"] or self._model})

    def error_body(self, error: GatewayError) -> bytes:
        return anthropic_error_body(error, self._request_id)

    def error_event(self, error: GatewayError) -> bytes:
        return error_event(self.error_body(error))


class CountTokensDialect(AnthropicDialect):
    """POST /v1/messages/count_tokens: only the prompt is there."""

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        return await unhurried(body, decode_count_request)

    async def answer_body(self, body: bytes) -> bytes:
        return body
