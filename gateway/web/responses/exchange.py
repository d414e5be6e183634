"""Exchanges of the Responses API, which may continue in the background without their client.

See gateway/web/stored/background_responses.py.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from gateway.domain.errors import BadRequest, GatewayError
from gateway.domain.request import InferenceRequest, QueueHeaders
from gateway.domain.tenant import Tenant
from gateway.web.exchange import HttpExchange
from gateway.web.responses.dialect import ResponsesDialect
from gateway.web.responses.stored_responses import stream_background_response
from gateway.web.stored.background_responses import BackgroundResponse
from gateway.web.stored.object_stores import ObjectStores


class ResponsesExchange(HttpExchange):
    """An HTTP exchange of the Responses API.

    A request with `background: true` detaches: its answer then goes to the database through `background`, and
    `answer_client` answers the client.
    """

    def __init__(
        self,
        http: web.Request,
        stores: ObjectStores,
        **more: Any,
    ) -> None:
        def dialect(request_id: str) -> ResponsesDialect:
            return ResponsesDialect(request_id, stores.responses, stores.conversations)

        super().__init__(http, dialect, **more)
        assert isinstance(self._dialect, ResponsesDialect)
        self._responses = self._dialect
        self._background_responses = stores.background_responses
        self.detached = asyncio.Event()
        """Set when the exchange continues in the background."""
        self.background: BackgroundResponse | None = None

    @property
    def started(self) -> bool:
        """Whether an answer has been started, or the exchange has detached."""
        return self.background is not None or super().started

    @property
    def queue_headers(self) -> QueueHeaders:
        """The queue options in the headers; a background response has no timeout and needs no comments."""
        queue_headers = super().queue_headers
        return (
            queue_headers
            if self.background is None
            else QueueHeaders(service_class=queue_headers.service_class)
        )

    async def read_request(self, tenant: Tenant) -> InferenceRequest:
        """Return the decoded body; detach if it requests a background response."""
        request = await super().read_request(tenant)
        if self._responses.background:
            task = asyncio.current_task()
            assert task is not None
            if self._background_responses is None:
                raise BadRequest("Responses are not stored: the gateway has no database.", param="background")
            self.background = await self._background_responses.begin(self._responses.stored_response(), task)
            self.background.append(self._responses.queued_events())
            self.detached.set()
        return request

    async def answer_client(self) -> None:
        """Answer the client of a detached exchange: with the queued response, or with its stream."""
        assert self.background is not None
        assert self._background_responses is not None
        stored = self.background.stored
        if not self._responses.streamed:
            await self._answer(200, "application/json", stored.response, {})
            return
        self.response = await stream_background_response(
            self._http,
            self._background_responses,
            stored,
            after=-1,
            unread_seconds_max=self._unread_seconds_max,
        )

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """Start the stream, or record that the background response is in progress."""
        if self.background is None:
            await super().begin(status, content_type, headers)
        else:
            events = self._responses.stream_start()
            self.background.append(events, self._responses.stored_response().response)

    async def write(self, data: bytes) -> None:
        """Send more of the stream, or append it to the background response."""
        if self.background is None:
            await super().write(data)
        elif events := self._responses.stream_chunk(data):
            self.background.append(events)

    async def end(self, last: bytes = b"") -> None:
        """Complete the stream or the background response with its last bytes."""
        if self.background is None:
            await super().end(last)
        else:
            events = self._responses.stream_chunk(last) if last else b""
            await self._finish(events + await self._responses.stream_end())

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer, or complete the background response with it."""
        if self.background is None:
            await super().answer(status, content_type, body, headers)
        else:
            await self._responses.answer_body(body)
            await self._finish(self._responses.last_event())

    async def fail(self, error: GatewayError) -> None:
        """Send the error, or complete the background response with it."""
        if self.background is None:
            await super().fail(error)
        else:
            await self._finish(self._responses.error_event(error))

    async def _finish(self, events: bytes) -> None:
        assert self.background is not None
        assert self._background_responses is not None
        self.background.append(events)
        await self._background_responses.finish(self.background, self._responses.stored_response())


async def serve_detachable(exchange: ResponsesExchange, work: "asyncio.Task[None]") -> None:
    """Wait for the task that serves an exchange, until it has ended or the exchange has detached.

    If the client disconnects before the exchange has detached, the task is cancelled.
    """
    detached = asyncio.create_task(exchange.detached.wait())
    try:
        await asyncio.wait((work, detached), return_when=asyncio.FIRST_COMPLETED)
        if exchange.background is not None:
            await exchange.answer_client()
        else:
            await work
    finally:
        detached.cancel()
        if exchange.background is None:
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
            if not work.cancelled():
                work.exception()  # Retrieved, so that asyncio does not log it: the client has left.
