"""The dialect of Anthropic's Messages API."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from gateway.domain.errors import GatewayError
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.web.anthropic import answers
from gateway.web.anthropic.answer_headers import anthropic_headers
from gateway.web.anthropic.events import MessageEvents, error_event
from gateway.web.anthropic.request_translation import decode_count_request, decode_message_request
from gateway.web.bodies.body_decoding import decode_in_thread_if_long
from gateway.web.error_response import anthropic_error_body
from gateway.web.omitted_tools import log_omitted_tools, omitted_tools_header
from gateway.web.openai import chat_completions


class AnthropicDialect:
    """The dialect of one exchange of the Messages API; see Dialect."""

    surface = Surface.MESSAGES

    translates_answers = True
    """True: a stream has events of its own."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._message_id = f"msg_{request_id.removeprefix('req-')}"
        self._model = ""
        self._stops: frozenset[str] = frozenset()
        self._warms_cache = False
        self._omitted_tools: list[str] = []
        self._length_reason = answers.MAX_TOKENS
        self._prompt_tokens = 0
        self._events: MessageEvents | None = None

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """Return the chat completion request in a body of /v1/messages. Raises BadRequest."""
        read = await decode_in_thread_if_long(body, decode_message_request)
        self._model, self._stops, self._warms_cache = read.chat.model, read.stops, read.warms_cache
        self._omitted_tools = read.omitted_tools
        log_omitted_tools(self._request_id, read.omitted_tools)
        return read.chat

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """Record the prompt's tokens for `message_start`, and whether the context bounds the answer."""
        self._prompt_tokens = prompt_tokens
        self._length_reason = (
            answers.CONTEXT_EXCEEDED if output_tokens_max is not None else answers.MAX_TOKENS
        )

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers under Anthropic's names, and a header that names omitted tools."""
        renamed = anthropic_headers(dict(headers), datetime.now(UTC))
        return renamed | omitted_tools_header(self._omitted_tools)

    def stream_start(self) -> bytes:
        """Return the first events of a message."""
        self._events = MessageEvents(
            self._message_id,
            self._model,
            self._prompt_tokens,
            self._stops,
            length_reason=self._length_reason,
            omit_content=self._warms_cache,
        )
        return self._events.begin()

    def stream_chunk(self, data: bytes) -> bytes:
        """Return the events of the next bytes of the worker's stream."""
        assert self._events is not None
        return self._events.feed(data)

    async def stream_end(self) -> bytes:
        """Return the last events of a message."""
        assert self._events is not None
        return self._events.end()

    async def answer_body(self, body: bytes) -> bytes:
        """Return the message of a whole chat completion."""
        message = answers.message_object(
            chat_completions.decode_chat_completion(body),
            self._message_id,
            self._stops,
            self._length_reason,
        )
        omitted = answers.NO_CONTENT if self._warms_cache else {}
        return msgspec.json.encode({**message, **omitted, "model": message["model"] or self._model})

    def error_body(self, error: GatewayError) -> bytes:
        """Return the error in Anthropic's shape."""
        return anthropic_error_body(error, self._request_id)

    def error_event(self, error: GatewayError) -> bytes:
        """Return the `error` event."""
        return error_event(self.error_body(error))


class CountTokensDialect(AnthropicDialect):
    """The dialect of POST /v1/messages/count_tokens: a request with only a prompt."""

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """Return a chat completion request with the prompt to count. Raises BadRequest."""
        return await decode_in_thread_if_long(body, decode_count_request)

    async def answer_body(self, body: bytes) -> bytes:
        """Return the token count unchanged."""
        return body
