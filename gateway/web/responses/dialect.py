"""The dialect of the Responses API.

A conversation continues from stored responses. An answer is stored before its end is sent, so that a client can
continue from the response as soon as it has read the end, at any gateway.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.database.conversation_store import ConversationStore
from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.response_store import BYTES_MAX, ResponseStore, StoredResponse
from gateway.domain.errors import BadRequest, GatewayError, PreviousResponseNotFound, ResponsesUnavailable
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.domain.token_usage import TokenUsage
from gateway.web.bodies.body_decoding import decode_in_thread_if_long
from gateway.web.omitted_tools import log_omitted_tools, omitted_tools_header
from gateway.web.openai import chat_completions
from gateway.web.responses import answers, references, wire
from gateway.web.responses.continued_conversation import ContinuedConversation, continued_conversation
from gateway.web.responses.events import ResponseEvents
from gateway.web.responses.items import input_items
from gateway.web.responses.request_translation import ResponseRequest, decode_responses_body, to_chat_request

log = logging.getLogger(__name__)

Json = dict[str, Any]


class ResponsesDialect:
    """The dialect of one exchange of the Responses API; see Dialect."""

    surface = Surface.RESPONSES

    translates_answers = True
    """True: a stream has events of its own."""

    def __init__(
        self,
        request_id: str,
        store: ResponseStore | None,
        conversations: ConversationStore | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begin an exchange.

        Args:
            request_id: The request id of the exchange, from which the response's id is made.
            store: The stored responses; None without a database.
            conversations: The stored conversations; None without a database.
            wall: Unix time in seconds.
        """
        self._request_id = request_id
        self._id = f"resp_{request_id.removeprefix('req-')}"
        self._store = store if store is not None and store.enabled else None
        self._conversations = conversations
        self._conversation: ContinuedConversation | None = None
        self._adds_items = True
        self._wall = wall
        self._tenant = ""
        self._asked: ResponseRequest | None = None
        self._response: Json = {}
        self._events: ResponseEvents | None = None
        self.background = self.streamed = False

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        """Return the chat completion request for a body.

        Raises BadRequest, NotFound, PreviousResponseNotFound, ResponsesUnavailable.
        """
        self._tenant = tenant.id
        read, fields = await decode_in_thread_if_long(body, decode_responses_body)
        self._conversation = continued_conversation(self._conversations, tenant.id, read.conversation)
        previous, own = await self._items(read, body)
        if self._conversation is not None:
            self._conversation.check_own_items(previous, own)
        asked = self._asked = await decode_in_thread_if_long(
            body, lambda _: to_chat_request(read, fields, previous, own)
        )
        if read.store is False:
            self._store, self._adds_items = None, False
        self.background, self.streamed = bool(read.background), bool(read.stream)
        if self.background and self._store is None:
            raise BadRequest("A background response has to be stored.", param="background")
        if self._store is not None or self._conversation is not None:
            written = await decode_in_thread_if_long(body, lambda _: msgspec.json.encode(asked.context))
            if len(written) > BYTES_MAX:
                raise self._conversation_too_long()
        log_omitted_tools(self._request_id, asked.tools.omitted)
        self._response = answers.new_response(
            self._id, self._wall(), read, asked.tools.offered, stored=self._store is not None
        )
        if self._conversation is not None:
            self._response["conversation"] = {"id": self._conversation.id}
        if self.background:
            self._events = ResponseEvents(
                self._response, asked.tools, encodes_reasoning=asked.encodes_reasoning
            )
        return asked.chat

    def stored_response(self) -> StoredResponse:
        """Return the response as it is now, to be stored."""
        assert self._asked is not None
        return StoredResponse(
            id=self._id,
            tenant=self._tenant,
            created=self._wall(),
            response=msgspec.json.encode(self._response),
            context=msgspec.json.encode(self._asked.context),
            own_from=self._asked.own_from,
        )

    def queued_events(self) -> bytes:
        """Return the first events of a background response's stream."""
        assert self._events is not None
        return self._events.queued()

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        """Do nothing, since the answer has the worker's own counts."""

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers, which are OpenAI's, and a header that names omitted tools."""
        asked = self._asked
        return {**headers, **omitted_tools_header(asked.tools.omitted if asked is not None else ())}

    def stream_start(self) -> bytes:
        """Return the events of a response that is in progress."""
        self._response = self._response | {"status": "in_progress"}
        if self._events is None:
            assert self._asked is not None
            self._events = ResponseEvents(
                self._response, self._asked.tools, encodes_reasoning=self._asked.encodes_reasoning
            )
            return self._events.begin()
        return self._events.in_progress(self._response)

    def stream_chunk(self, data: bytes) -> bytes:
        """Return the events of the next bytes of the worker's stream."""
        assert self._events is not None
        return self._events.feed(data)

    async def stream_end(self) -> bytes:
        """Store the response, and return its last events."""
        events = self._events
        assert events is not None
        head, output = events.close()
        return head + events.last(await self._finished(output, events.finish_reason, events.usage))

    async def answer_body(self, body: bytes) -> bytes:
        """Store the response of a whole chat completion, and return it."""
        asked = self._asked
        assert asked is not None
        chat = chat_completions.decode_chat_completion(body)
        output, choice = answers.output_items(
            chat, self._id, asked.tools, encodes_reasoning=asked.encodes_reasoning
        )
        return msgspec.json.encode(await self._finished(output, choice.finish_reason, chat.parsed_usage))

    def error_body(self, error: GatewayError) -> bytes:
        """Return the error in OpenAI's shape, with the field names of the Responses API."""
        return error.body(answers.FIELD_NAMES)

    def error_event(self, error: GatewayError) -> bytes:
        """Return the `response.failed` event."""
        assert self._events is not None
        self._response = answers.failed_response(self._response, error)
        return self._events.last(self._response)

    def last_event(self) -> bytes:
        """Return the last event of a background response that the worker did not stream."""
        assert self._events is not None
        return self._events.last(self._response)

    async def _items(self, read: wire.ResponsesBody, body: bytes) -> tuple[list[Json], list[Json]]:
        """Return the items before the request's own input, and the items of its own input."""
        previous = await self._earlier_items(read)
        own = await decode_in_thread_if_long(body, lambda _: input_items(read.input, self._id))
        return previous, await references.resolve_references(own, self._get_response)

    async def _earlier_items(self, read: wire.ResponsesBody) -> list[Json]:
        """Return the items before the request's own input."""
        if self._conversation is not None:
            return await self._conversation.items()
        return await self._previous_items(read.previous_response_id) if read.previous_response_id else []

    def _conversation_too_long(self) -> BadRequest:
        text = f"A conversation of more than {BYTES_MAX} bytes is not stored"
        if self._conversation is not None:
            return BadRequest(f"{text}.", param="conversation")
        return BadRequest(f"{text}; send `store: false`.", param="store")

    async def _previous_items(self, identity: str) -> list[Json]:
        """Return the items of the conversation up to the end of a previous response."""
        stored = await self._get_response(identity)
        if stored is None:
            raise PreviousResponseNotFound(identity)
        if stored.running:
            raise BadRequest(
                f"The previous response {identity[:100]!r} has not ended.", param="previous_response_id"
            )
        return references.conversation_items(stored)

    async def _get_response(self, identity: str) -> StoredResponse | None:
        """Return a stored response of the tenant; None if there is none."""
        if self._store is None:
            return None
        try:
            return await self._store.get(self._tenant, identity)
        except DatabaseDown as err:
            raise ResponsesUnavailable from err

    async def _finished(
        self, output: list[Json], finish_reason: str | None, usage: TokenUsage | None
    ) -> Json:
        """Return the finished response, stored unless the request forbids that."""
        assert self._asked is not None
        response = self._response = answers.finished_response(
            self._response, output, finish_reason, usage, self._wall()
        )
        if self._conversation is not None and self._adds_items:
            items = [*self._asked.context[self._asked.own_from :], *output]
            if not await self._conversation.append(self._id, items):
                response = self._response = response | {"conversation": None}
        if self._store is None or self.background:
            return response
        try:
            await self._store.put(self.stored_response())
        except (DatabaseDown, DatabaseConflict) as err:
            # The response was generated and charged, so the client gets it, marked as not stored.
            log.warning("response %s is not stored: %s", self._id, err)
            return response | {"store": False}
        return response


class InputTokensDialect(ResponsesDialect):
    """The dialect of POST /v1/responses/input_tokens, which counts the prompt of a response's request body."""

    async def answer_body(self, body: bytes) -> bytes:
        """Add the object's type to the counted tokens."""
        return body[:-1] + b',"object":"response.input_tokens"}'
