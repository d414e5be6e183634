"""EndpointPicker: serves the requests that Envoy carries, each on a stream of its own."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from gateway.database.response_store import ResponseStore
from gateway.domain.errors import (
    CLIENT_CLOSED_STATUS,
    GatewayError,
    InternalError,
    MethodNotAllowed,
    NotFound,
    ShuttingDown,
)
from gateway.domain.memory_budget import MemoryBudget
from gateway.domain.request import FORM_SURFACES, Surface
from gateway.endpoint_picker import ext_proc_pb2 as messages
from gateway.endpoint_picker.envoy_exchange import EnvoyExchange
from gateway.endpoint_picker.envoy_request import EnvoyConnection, EnvoyRequest
from gateway.pipeline import Services, serve
from gateway.process.drain_state import DrainState
from gateway.settings.types import Network
from gateway.telemetry.access_log import AccessLine, AccessLog
from gateway.web.dialect_factory import DialectFactory, dialect_factory
from gateway.web.path_spellings import spellings
from gateway.web.request_identity import SERVER, new_request_id

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerServices:
    """What an endpoint picker needs of the gateway."""

    services: Services
    drain_state: DrainState
    memory: MemoryBudget
    access_log: AccessLog | None
    responses: ResponseStore | None
    """The store of the Responses API; None without a database."""
    trusted: Sequence[Network]
    """Networks of proxies in front of Envoy."""
    body_bytes_max: int
    body_seconds_max: float


class EndpointPicker:
    """Serves each stream of messages from Envoy as one request."""

    def __init__(self, parts: PickerServices) -> None:
        self._parts = parts
        self._dialects: dict[str, DialectFactory] = {}
        for surface in Surface:
            if surface not in FORM_SURFACES:
                make = dialect_factory(surface, parts.responses)
                self._dialects.update(dict.fromkeys(spellings(surface.value), make))

    async def process(self, connection: EnvoyConnection) -> None:
        """Serve one request, from its headers to the end of its answer."""
        received_at, began = time.time(), time.monotonic()
        first = await connection.read()
        if not isinstance(first, messages.ProcessingRequest) or not first.HasField("request_headers"):
            return
        parts = self._parts
        request = EnvoyRequest(connection, first, parts.services.unread_seconds_max)
        request_id = new_request_id()
        path = request.request_headers.get(":path", "").partition("?")[0]
        try:
            make = self._checked(first, request, path, request_id)
        except GatewayError as err:
            headers = {"server": SERVER, "x-request-id": request_id, "content-type": "application/json"}
            await request.answer_at_once(err.status, {**headers, **err.headers()}, err.body())
            return
        exchange = EnvoyExchange(
            request_id,
            request,
            make(request_id),
            memory=parts.memory,
            trusted=parts.trusted,
            body_bytes_max=parts.body_bytes_max,
            body_seconds_max=parts.body_seconds_max,
        )
        try:
            await self._serve(exchange, request)
        finally:
            if parts.access_log is not None:
                tenant = exchange.tenant
                parts.access_log.put(
                    AccessLine(
                        seconds=received_at,
                        tenant=tenant.id if tenant is not None else "",
                        key_id=tenant.key_id if tenant is not None else "",
                        method="POST",
                        route=path,
                        status=exchange.status if request.over else CLIENT_CLOSED_STATUS,
                        bytes=exchange.bytes_sent,
                        ms=round(1000 * (time.monotonic() - began), 3),
                        request_id=request_id,
                        record=parts.access_log.take_record(request_id),
                    )
                )

    def _checked(
        self, first: messages.ProcessingRequest, request: EnvoyRequest, path: str, request_id: str
    ) -> DialectFactory:
        """Return what makes the dialect of the request's API. Raises GatewayError."""
        if first.HasField("protocol_config"):
            modes = first.protocol_config
            full = messages.FULL_DUPLEX_STREAMED
            if not (modes.request_body_mode == modes.response_body_mode == full):
                log.error(
                    "a request was refused: the ext_proc filter of the proxy has to send the bodies of requests "
                    "and of responses in mode FULL_DUPLEX_STREAMED"
                )
                raise InternalError(request_id)
        make = self._dialects.get(path)
        if make is None:
            raise NotFound(f"There is nothing at {path[:200]} behind this proxy.")
        if request.request_headers.get(":method") != "POST":
            raise MethodNotAllowed("POST")
        if not self._parts.drain_state.accepting:
            raise ShuttingDown
        return make

    async def _serve(self, exchange: EnvoyExchange, request: EnvoyRequest) -> None:
        """Serve the exchange until it has ended, or the client has left."""
        under_way = self._parts.drain_state.requests
        work = asyncio.create_task(self._work(exchange))
        receiving = asyncio.create_task(request.receive())
        under_way.add(work)
        try:
            await asyncio.wait((work, receiving), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not request.over:
                work.cancel()  # The stream has ended before the answer: the client has left.
            await asyncio.wait((work,))
        finally:
            under_way.discard(work)
            receiving.cancel()
            if not request.over:
                work.cancel()
            await asyncio.wait((work, receiving))
            request.fail()
            if not receiving.cancelled():
                receiving.exception()  # Retrieved, so that asyncio does not log it: Envoy has closed the stream.

    async def _work(self, exchange: EnvoyExchange) -> None:
        with suppress(ConnectionResetError):  # The client has left, which is no error of the gateway.
            await serve(exchange, self._parts.services)
