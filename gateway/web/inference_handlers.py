"""The handlers of inference requests on the tenants' listener, by path; each creates an exchange and serves it."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from gateway.domain.errors import ShuttingDown
from gateway.domain.request import FORM_SURFACES, Surface
from gateway.pipeline import Services, serve
from gateway.process.drain_state import DrainState
from gateway.web.anthropic.dialect import CountTokensDialect
from gateway.web.dialect_factory import dialect_factory
from gateway.web.exchange import HttpExchange
from gateway.web.exchange_handler import ExchangeTask, exchange_handler
from gateway.web.middleware.error_middleware import Handler
from gateway.web.openai.audio_forms import FormExchange
from gateway.web.openai.deployments import DeploymentExchange
from gateway.web.responses.compaction import CompactionDialect
from gateway.web.responses.dialect import InputTokensDialect
from gateway.web.responses.exchange import ResponsesExchange, serve_detachable
from gateway.web.stored.object_stores import ObjectStores
from gateway.web.token_count import answer_token_count


class InferenceHandlers:
    """Makes the handlers of inference requests.

    Args:
        services: The inference pipeline and what it needs.
        drain_state: Whether new requests are accepted, and the tasks under way.
        stores: The stores of responses and conversations.
        exchange_options: Keyword arguments of every exchange, such as bounds of bodies.
    """

    def __init__(
        self,
        services: Services,
        drain_state: DrainState,
        stores: ObjectStores,
        exchange_options: dict[str, Any],
    ) -> None:
        self._services = services
        self._drain_state = drain_state
        self._stores = stores
        self._exchange_options = exchange_options

    def by_path(self) -> dict[str, Handler]:
        """Return the POST handlers by path, without the prefix `/v1/`."""
        stores, counted = self._stores, partial(self._handler, work=answer_token_count)
        handlers = {
            surface.value: self._handler(
                FormExchange if surface in FORM_SURFACES else HttpExchange,
                dialect=dialect_factory(surface, stores.responses, stores.conversations),
            )
            for surface in Surface
        }
        # A response may outlive its handler, so `_serve_response` replaces the handler that was made for it above.
        compaction = partial(CompactionDialect, store=stores.responses, conversations=stores.conversations)
        input_tokens = partial(InputTokensDialect, store=stores.responses, conversations=stores.conversations)
        return handlers | {
            "messages/count_tokens": counted(HttpExchange, dialect=CountTokensDialect),
            "responses": self._serve_response,
            "responses/compact": self._handler(HttpExchange, dialect=compaction),
            "responses/input_tokens": counted(HttpExchange, dialect=input_tokens),
        }

    @staticmethod
    def served_directly(handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Return those of these handlers that need nothing of aiohttp's server, see gateway/web/direct."""
        others = {*FORM_SURFACES, Surface.RESPONSES}
        return {surface.value: handlers[surface.value] for surface in Surface if surface not in others}

    def at_deployment(self, surface: Surface) -> Handler:
        """Return the handler of a surface at a path that names the model, as in Azure's API."""
        return self._handler(DeploymentExchange, surface=surface)

    def _handler(
        self, new_exchange: Callable[..., HttpExchange], *, work: ExchangeTask = serve, **options: Any
    ) -> Handler:
        make = partial(new_exchange, **options, **self._exchange_options)
        return exchange_handler(make, work, self._services, self._drain_state)

    async def _serve_response(self, http: web.Request) -> web.StreamResponse:
        """Serve POST /v1/responses in a task that may outlive this handler."""
        exchange = ResponsesExchange(http, self._stores, **self._exchange_options)
        exchange.closes_connection = not self._drain_state.ready
        try:
            if not self._drain_state.accepting:
                await exchange.fail(ShuttingDown())
            else:
                await serve_detachable(exchange, asyncio.create_task(self._serve_in_task(exchange)))
        except ConnectionResetError:
            return exchange.response or web.Response()
        finally:
            exchange.close()
        assert exchange.response is not None
        return exchange.response

    async def _serve_in_task(self, exchange: HttpExchange) -> None:
        """Serve an exchange in the current task, which draining waits for."""
        task = asyncio.current_task()
        assert task is not None
        self._drain_state.requests.add(task)
        try:
            await serve(exchange, self._services)
        finally:
            self._drain_state.requests.discard(task)
