"""The Responses API as a dialect.

A conversation goes on from what is stored, and an answer is stored before its end is told: who has read it may go
on from it at once, at any gateway.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.database.database import DatabaseConflict, DatabaseDown
from gateway.database.response_store import BYTES_MAX, ResponseStore, StoredResponse
from gateway.domain.errors import BadRequest, GatewayError, PreviousResponseNotFound, ResponsesUnavailable
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.telemetry.record import Usage
from gateway.web.bodies.body_decoding import unhurried
from gateway.web.openai import chat_completions
from gateway.web.responses import answers, references
from gateway.web.responses.events import ResponseEvents
from gateway.web.responses.items import whole
from gateway.web.responses.requests import ResponseRequest, chat_request, read_body

log = logging.getLogger(__name__)

Json = dict[str, Any]


class ResponsesDialect:
    """See Dialect. One exchange. `store`: None where nothing is kept."""

    surface = Surface.RESPONSES

    def __init__(
        self, request_id: str, store: ResponseStore | None, wall: Callable[[], float] = time.time
    ) -> None:
        self._id = f"resp_{request_id.removeprefix('req-')}"
        self._store = store if store is not None and store.keeps else None
        self._wall = wall
        self._tenant = ""
        self._asked: ResponseRequest | None = None
        self._response: Json = {}
        self._events: ResponseEvents | None = None
        self.background = self.streamed = False

    async def decode_request(self, body: bytes, tenant: Tenant) -> InferenceRequest:
        self._tenant = tenant.id
        read, fields = await unhurried(body, read_body)
        before = await self._before(read.previous_response_id) if read.previous_response_id else []
        own = await references.resolved(
            await unhurried(body, lambda _: whole(read.input, self._id)), self._kept
        )
        asked = self._asked = await unhurried(body, lambda _: chat_request(read, fields, before, own))
        if read.store is False:
            self._store = None
        self.background, self.streamed = bool(read.background), bool(read.stream)
        if self.background and self._store is None:
            raise BadRequest("A response in the background has to be stored.", param="background")
        if self._store is not None:
            written = await unhurried(body, lambda _: msgspec.json.encode(asked.context))
            if len(written) > BYTES_MAX:
                raise BadRequest(
                    f"A conversation of more than {BYTES_MAX} bytes is not stored; send `store: false`.",
                    param="store",
                )
        self._response = answers.opening(self._id, self._wall(), read, stored=self._store is not None)
        if self.background:
            self._events = ResponseEvents(self._response, asked.tools)
        return asked.chat

    def now(self) -> StoredResponse:
        """The response as it is."""
        assert self._asked is not None
        return StoredResponse(
            id=self._id,
            tenant=self._tenant,
            created=self._wall(),
            response=msgspec.json.encode(self._response),
            context=msgspec.json.encode(self._asked.context),
            own_from=self._asked.own_from,
        )

    def queue(self) -> bytes:
        """What a stream in the background begins with."""
        assert self._events is not None
        return self._events.queue()

    def set_prompt_tokens(self, prompt_tokens: int, output_tokens_max: int | None) -> None:
        pass

    def answer_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return dict(headers)

    def stream_start(self) -> bytes:
        self._response = self._response | {"status": "in_progress"}
        if self._events is None:
            assert self._asked is not None
            self._events = ResponseEvents(self._response, self._asked.tools)
            return self._events.begin()
        return self._events.progress(self._response)

    def stream_chunk(self, data: bytes) -> bytes:
        assert self._events is not None
        return self._events.feed(data)

    async def stream_end(self) -> bytes:
        events = self._events
        assert events is not None
        head, output = events.close()
        return head + events.last(await self._ended(output, events.finish, events.usage))

    async def answer_body(self, body: bytes) -> bytes:
        assert self._asked is not None
        chat = chat_completions.decode_chat_completion(body)
        output, choice = answers.output_of(chat, self._id, self._asked.tools)
        return msgspec.json.encode(await self._ended(output, choice.finish_reason, chat.parsed_usage))

    def error_body(self, error: GatewayError) -> bytes:
        return error.body(answers.NAMES)

    def error_event(self, error: GatewayError) -> bytes:
        assert self._events is not None
        self._response = answers.failed(self._response, error)
        return self._events.last(self._response)

    def last(self) -> bytes:
        """The last event, of a response that came as a whole."""
        assert self._events is not None
        return self._events.last(self._response)

    async def _before(self, identity: str) -> list[Json]:
        """The conversation that a response has ended with."""
        stored = await self._kept(identity)
        if stored is None:
            raise PreviousResponseNotFound(identity)
        if stored.running:
            raise BadRequest(
                f"The previous response {identity[:100]!r} has not ended.", param="previous_response_id"
            )
        return references.conversation(stored)

    async def _kept(self, identity: str) -> StoredResponse | None:
        """A response of this tenant."""
        if self._store is None:
            return None
        try:
            return await self._store.get(self._tenant, identity)
        except DatabaseDown as err:
            raise ResponsesUnavailable from err

    async def _ended(self, output: list[Json], finish: str | None, counted: Usage | None) -> Json:
        """The whole response, which is kept if it is to be."""
        assert self._asked is not None
        response = self._response = answers.ended(self._response, output, finish, counted, self._wall())
        if self._store is None or self.background:
            return response
        try:
            await self._store.put(self.now())
        except (DatabaseDown, DatabaseConflict) as err:
            # It has been generated and is charged: the client gets it, and is told that it cannot come back to it.
            log.warning("response %s is not stored: %s", self._id, err)
            return response | {"store": False}
        return response


class InputTokensDialect(ResponsesDialect):
    """POST /v1/responses/input_tokens: the same body, of which the prompt is counted."""

    async def answer_body(self, body: bytes) -> bytes:
        return body[:-1] + b',"object":"response.input_tokens"}'
