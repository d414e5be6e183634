"""An exchange of the Responses API, which may part from its client: see background.py."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from gateway.database.response_store import ResponseStore
from gateway.domain.errors import BadRequest, GatewayError
from gateway.domain.request import InferenceRequest, QueueHeaders
from gateway.domain.tenant import Tenant
from gateway.web.exchange import HttpExchange
from gateway.web.responses.dialect import ResponsesDialect
from gateway.web.responses.stored_responses import shown
from gateway.web.stored.background_responses import BackgroundResponse, BackgroundResponses


class ResponsesExchange(HttpExchange):
    """See Exchange. `parted` is set when it goes on in the background as `run`; its client is told by `tell`."""

    def __init__(
        self, http: web.Request, store: ResponseStore | None, runs: BackgroundResponses | None, **more: Any
    ) -> None:
        super().__init__(http, lambda request_id: ResponsesDialect(request_id, store), **more)
        assert isinstance(self._dialect, ResponsesDialect)
        self._responses = self._dialect
        self._runs = runs
        self.parted = asyncio.Event()
        self.run: BackgroundResponse | None = None

    @property
    def started(self) -> bool:
        return self.run is not None or super().started

    @property
    def queue_headers(self) -> QueueHeaders:
        """In the background nobody's patience ends, and nobody waits for a sign of life."""
        queue_headers = super().queue_headers
        return queue_headers if self.run is None else QueueHeaders(service_class=queue_headers.service_class)

    async def request(self, tenant: Tenant) -> InferenceRequest:
        request = await super().request(tenant)
        if self._responses.background:
            task = asyncio.current_task()
            assert task is not None
            if self._runs is None:
                raise BadRequest("Responses are not kept here.", param="background")
            self.run = await self._runs.begin(self._responses.now(), task)
            self.run.say(self._responses.queue())
            self.parted.set()
        return request

    async def tell(self) -> None:
        """The client: what it asked for is on its way, or the stream of it."""
        assert self.run is not None
        assert self._runs is not None
        stored = self.run.stored
        if not self._responses.streamed:
            await self._answer(200, "application/json", stored.response, {})
            return
        self.response = await shown(
            self._http, self._runs, stored, after=-1, idle_seconds=self._unread_seconds_max
        )

    async def begin(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        if self.run is None:
            await super().begin(status, content_type, headers)
        else:
            events = self._responses.stream_start()
            self.run.say(events, self._responses.now().response)

    async def write(self, data: bytes) -> None:
        if self.run is None:
            await super().write(data)
        elif events := self._responses.stream_chunk(data):
            self.run.say(events)

    async def end(self) -> None:
        if self.run is None:
            await super().end()
        else:
            await self._finish(await self._responses.stream_end())

    async def answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str]) -> None:
        if self.run is None:
            await super().answer(status, content_type, body, headers)
        else:
            await self._responses.answer_body(body)
            await self._finish(self._responses.last())

    async def fail(self, error: GatewayError) -> None:
        if self.run is None:
            await super().fail(error)
        else:
            await self._finish(self._responses.error_event(error))

    async def _finish(self, events: bytes) -> None:
        assert self.run is not None
        assert self._runs is not None
        self.run.say(events)
        await self._runs.finish(self.run, self._responses.now())


async def parting(exchange: ResponsesExchange, work: "asyncio.Task[None]") -> None:
    """The work to its end; or until it goes on without its client, who is told so. Who leaves before ends it."""
    parted = asyncio.create_task(exchange.parted.wait())
    try:
        await asyncio.wait((work, parted), return_when=asyncio.FIRST_COMPLETED)
        if exchange.run is not None:
            await exchange.tell()
        else:
            await work
    finally:
        parted.cancel()
        if exchange.run is None:
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
            if not work.cancelled():
                work.exception()  # Nobody is left to hear that its client is.
