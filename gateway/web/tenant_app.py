"""The web application of the tenants' listener: its paths and their handlers.

Only the paths of this file reach a worker; every other path of a worker's API is answered with 404.
"""

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import BadContentDispositionHeader, BadContentDispositionParam, web

from gateway.domain.errors import GatewayError, MethodNotAllowed, NotFound, ShuttingDown
from gateway.domain.memory_budget import MemoryBudget
from gateway.domain.request import FORM_SURFACES, Surface
from gateway.domain.tenant import INFERENCE, USAGE, Tenant
from gateway.explorer.request_details import RequestDetails
from gateway.explorer.request_explorer import RequestExplorer
from gateway.pipeline import Services, serve
from gateway.process.drain_state import DrainState
from gateway.telemetry.access_log import AccessLog
from gateway.web.anthropic.batches import MessageBatchHandlers
from gateway.web.anthropic.dialect import CountTokensDialect
from gateway.web.bodies.expectation import defer_expect
from gateway.web.cell_relay import CellRelay
from gateway.web.client_address import FindAddress
from gateway.web.console import tenant_page_file
from gateway.web.dialect_factory import dialect_factory
from gateway.web.error_response import error_response
from gateway.web.exchange import HttpExchange
from gateway.web.exchange_handler import ExchangeTask, exchange_handler
from gateway.web.middleware.access_middleware import access_log_middleware
from gateway.web.middleware.cors import CrossOriginPolicy
from gateway.web.middleware.error_middleware import Handler, error_middleware
from gateway.web.models import ModelHandlers
from gateway.web.openai.audio_forms import FormExchange
from gateway.web.openai.batches import BatchHandlers
from gateway.web.openai.deployments import DEPLOYMENT_SURFACES, DeploymentExchange
from gateway.web.openai.files import FileHandlers
from gateway.web.openapi.document import tenant_api_document
from gateway.web.own_requests import OwnRequestList, own_request, own_requests
from gateway.web.path_spellings import AZURE_DEPLOYMENTS, PREFIXES, spellings
from gateway.web.request_identity import SERVER, new_request_id, presented_key, set_caller
from gateway.web.responses.compaction import CompactionDialect
from gateway.web.responses.conversations import ConversationHandlers
from gateway.web.responses.dialect import InputTokensDialect
from gateway.web.responses.exchange import ResponsesExchange, serve_detachable
from gateway.web.responses.stored_responses import StoredResponseHandlers
from gateway.web.stored.object_stores import ObjectStores
from gateway.web.token_count import answer_token_count
from gateway.web.usage import LimitList, UsageList, own_limits, own_usage

COHERE_RERANK = "/v2/rerank"
"""The path at which Cohere's clients ask for reranking, and at which engines serve it."""


def tenant_app(
    services: Services,
    drain_state: DrainState,
    *,
    memory: MemoryBudget,
    body_bytes_max: int,
    body_seconds_max: float,
    local_names_only: Callable[[], bool],
    cors: CrossOriginPolicy | None,
    access_log: AccessLog | None,
    find_address: FindAddress,
    stores: ObjectStores,
    cells: CellRelay | None = None,
    explorer: RequestExplorer | None = None,
) -> web.Application:
    """Return the application behind the `listen` settings.

    Args:
        services: The inference pipeline and what it needs.
        drain_state: Whether new requests are accepted; knows the tasks that are under way.
        memory: The memory that all requests share.
        body_bytes_max: Largest request body.
        body_seconds_max: Time in which a request body has to arrive.
        local_names_only: Whether the Host header has to name loopback; see error_middleware.
        cors: Which web pages may call the API; None for none.
        access_log: Gets one line per request; None for no log.
        find_address: Returns a client's address.
        stores: The stores of responses, files and batches.
        cells: Relays requests of other cells' tenants; None without cells.
        explorer: Finds finished requests; None where none are remembered.
    """
    for warning in (BadContentDispositionHeader, BadContentDispositionParam):
        # Malformed forms of clients: Python would print each of these warnings once, and remember it for ever.
        warnings.simplefilter("ignore", warning)
    if cells is not None:
        find_address = cells.address_finder(find_address)
    responses = stores.responses
    exchange_options: dict[str, Any] = {
        "find_address": find_address,
        "memory": memory,
        "body_bytes_max": body_bytes_max,
        "body_seconds_max": body_seconds_max,
        "unread_seconds_max": services.idle_seconds_max,
        "cells": cells,
        "logged": access_log is not None,
    }

    async def authenticate(http: web.Request, scope: str = INFERENCE) -> Tenant:
        tenant = await services.authentication.authenticate(
            presented_key(http.headers), lambda: find_address(http), scope
        )
        set_caller(http, tenant)
        return tenant

    under_way = drain_state.requests

    async def serve_in_task(exchange: HttpExchange) -> None:
        """Serve an exchange in the current task, which draining waits for."""
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            await serve(exchange, services)
        finally:
            under_way.discard(task)

    def inference_handler(new_exchange: Callable[..., HttpExchange], work: ExchangeTask = serve) -> Handler:
        return exchange_handler(partial(new_exchange, **exchange_options), work, services, drain_state)

    async def responses_handler(http: web.Request) -> web.StreamResponse:
        """Serve POST /v1/responses in a task that may outlive this handler."""
        exchange = ResponsesExchange(http, stores, **exchange_options)
        try:
            if not drain_state.accepting:
                await exchange.fail(ShuttingDown())
            else:
                await serve_detachable(exchange, asyncio.create_task(serve_in_task(exchange)))
        except ConnectionResetError:
            return exchange.response or web.Response()
        finally:
            exchange.close()
        assert exchange.response is not None
        return exchange.response

    def shown_to_tenant(
        show: Callable[[web.Request, Tenant], Awaitable[Any]], *, by_its_cell: bool = False
    ) -> Handler:
        """Return a handler that answers what `show` returns as JSON, to a key for usage.

        `by_its_cell`: only the tenant's cell knows it.
        """

        async def handle(http: web.Request) -> web.Response:
            try:
                tenant = await authenticate(http, USAGE)
                if by_its_cell and cells is not None:
                    answer = await cells.fetch(http, tenant, find_address)
                    if answer is not None:
                        return answer
                value = await show(http, tenant)
            except GatewayError as err:
                return error_response(err, http)
            headers = {"server": SERVER, "x-request-id": new_request_id()}
            body = msgspec.json.encode(value)
            return web.Response(body=body, content_type="application/json", headers=headers)

        return handle

    async def usage(http: web.Request, tenant: Tenant) -> UsageList:
        return await own_usage(services.usage, tenant, http.query.items(), services.catalogue.discounts())

    async def limits(http: web.Request, tenant: Tenant) -> LimitList:
        return await own_limits(services.dispatch.reservations.leases, tenant)

    async def requests(http: web.Request, tenant: Tenant) -> OwnRequestList:
        return await own_requests(explorer, tenant, http.query)

    async def request(http: web.Request, tenant: Tenant) -> RequestDetails:
        return await own_request(explorer, tenant, http.match_info["id"])

    middlewares = [
        error_middleware(
            error_response,
            local_names_only=local_names_only,
            page_allowed=lambda http: cors is not None and cors.allowed(http) is not None,
        )
    ]
    if access_log is not None:
        middlewares.insert(0, access_log_middleware(access_log))
    if cors is not None:
        middlewares.append(cors.preflight())
    app = web.Application(middlewares=middlewares)
    if cors is not None:
        app.on_response_prepare.append(cors.response_headers())
    allowed_methods: dict[str, str] = {}
    models = ModelHandlers(services.catalogue, authenticate)
    inference_handlers = {
        surface.value: inference_handler(
            partial(
                FormExchange if surface in FORM_SURFACES else HttpExchange,
                dialect=dialect_factory(surface, responses, stores.conversations),
            )
        )
        for surface in Surface
    } | {
        "messages/count_tokens": inference_handler(
            partial(HttpExchange, dialect=CountTokensDialect), answer_token_count
        ),
        "responses": responses_handler,
        "responses/compact": inference_handler(
            partial(
                HttpExchange,
                dialect=partial(CompactionDialect, store=responses, conversations=stores.conversations),
            )
        ),
        "responses/input_tokens": inference_handler(
            partial(
                HttpExchange,
                dialect=partial(InputTokensDialect, store=responses, conversations=stores.conversations),
            ),
            answer_token_count,
        ),
    }
    stored_object_routes = [
        *StoredResponseHandlers(
            responses, stores.background_responses, authenticate, idle_seconds_max=services.idle_seconds_max
        ).routes(),
        *ConversationHandlers(
            stores.conversations,
            authenticate,
            memory=memory,
            body_seconds_max=body_seconds_max,
        ).routes(),
        *FileHandlers(stores.tenant_files, authenticate, idle_seconds_max=body_seconds_max).routes(),
        *BatchHandlers(stores, authenticate, body_seconds_max=body_seconds_max).routes(),
        *MessageBatchHandlers(stores, authenticate, memory, idle_seconds_max=body_seconds_max).routes(),
    ]
    read_handlers = {
        "models": models.list_all,
        "usage": shown_to_tenant(usage),
        "limits": shown_to_tenant(limits),
        "requests": shown_to_tenant(requests, by_its_cell=True),
        "requests/{id}": shown_to_tenant(request, by_its_cell=True),
    }
    for path, handler in inference_handlers.items():
        for spelling in spellings(path):
            app.router.add_post(spelling, handler, expect_handler=defer_expect)
            allowed_methods[spelling] = "POST"
    for path, handler in read_handlers.items():
        for spelling in spellings(path):
            app.router.add_get(spelling, handler, expect_handler=defer_expect)
            allowed_methods[spelling] = "GET, HEAD"
    for method, path, handler in stored_object_routes:
        for spelling in spellings(path):
            app.router.add_route(method, spelling, handler, expect_handler=defer_expect)
    for prefix in PREFIXES:
        app.router.add_get(f"{prefix}/models/{{model:.*}}", models.show, expect_handler=defer_expect)
    for surface in DEPLOYMENT_SURFACES:
        path = f"{AZURE_DEPLOYMENTS}/{surface.value}"
        handler = inference_handler(partial(DeploymentExchange, surface=surface))
        app.router.add_post(path, handler, expect_handler=defer_expect)

    app.router.add_post(COHERE_RERANK, inference_handlers[Surface.RERANK.value], expect_handler=defer_expect)
    allowed_methods[COHERE_RERANK] = "POST"

    async def describe(http: web.Request) -> web.Response:
        body = msgspec.json.encode(tenant_api_document(version("radixgate")))
        return web.Response(body=body, content_type="application/json", headers={"server": SERVER})

    app.router.add_get("/ui/{file:[a-z.]*}", tenant_page_file, expect_handler=defer_expect)
    app.router.add_get("/openapi.json", describe, expect_handler=defer_expect)

    async def not_found(http: web.Request) -> web.Response:
        allowed = allowed_methods.get(http.path.rstrip("/"))
        if allowed is not None and http.method not in allowed:
            return error_response(MethodNotAllowed(allowed), http)
        return error_response(NotFound(f"There is nothing at {http.method} {http.path[:200]}."), http)

    app.router.add_route("*", "/{anything:.*}", not_found, expect_handler=defer_expect)
    return app
