"""Handlers that serve a request as an exchange; draining waits for exchanges under way and admits no new ones."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.domain.errors import ShuttingDown
from gateway.pipeline import Services
from gateway.process.drain_state import DrainState
from gateway.web.exchange import HttpExchange
from gateway.web.middleware.error_middleware import Handler

ExchangeTask = Callable[[HttpExchange, Services], Awaitable[None]]
"""Serve one exchange: run it through the inference pipeline, or only count its prompt."""


def exchange_handler(
    new_exchange: Callable[[web.Request], HttpExchange],
    work: ExchangeTask,
    services: Services,
    drain_state: DrainState,
) -> Handler:
    """Return a handler that turns each request into an exchange, and serves it in the handler's task."""
    under_way = drain_state.requests

    async def handle(http: web.Request) -> web.StreamResponse:
        exchange = new_exchange(http)
        exchange.closes_connection = not drain_state.ready
        task = asyncio.current_task()
        assert task is not None
        try:
            if drain_state.accepting:
                under_way.add(task)  # Draining waits for it.
                await work(exchange, services)
            else:
                await exchange.fail(ShuttingDown())
        except ConnectionResetError:
            # A write found the client gone before its handler was cancelled. That is not an error.
            return exchange.response or web.Response()
        finally:
            under_way.discard(task)
            exchange.close()
        assert exchange.response is not None
        return exchange.response

    return handle
