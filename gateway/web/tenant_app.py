"""The web application of the tenants' listener: its paths and their handlers.

Only the paths of this file reach a worker; every other path of a worker's API is answered with 404.
"""

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import BadContentDispositionHeader, BadContentDispositionParam, web

from gateway.domain.errors import GatewayError, MethodNotAllowed, NotFound, ShuttingDown
from gateway.domain.request import FORM_SURFACES, Surface
from gateway.domain.tenant import INFERENCE, USAGE, Tenant
from gateway.pipeline import Services, serve
from gateway.process.drain_state import DrainState
from gateway.telemetry.access_log import AccessLog
from gateway.web.anthropic.batches import MessageBatchHandlers
from gateway.web.anthropic.dialect import CountTokensDialect
from gateway.web.bodies.body_reader import BodyBudget
from gateway.web.client_address import FindAddress
from gateway.web.dialect import Dialect
from gateway.web.dialect_factory import dialect_factory
from gateway.web.error_response import error_response
from gateway.web.exchange import HttpExchange
from gateway.web.middleware.access_middleware import access_log_middleware
from gateway.web.middleware.cors import CrossOriginPolicy
from gateway.web.middleware.error_middleware import Handler, answer_expect, error_middleware
from gateway.web.models import ModelHandlers
from gateway.web.openai.audio_forms import FormExchange
from gateway.web.openai.batches import BatchHandlers
from gateway.web.openai.files import FileHandlers
from gateway.web.openapi.document import tenant_api_document
from gateway.web.request_identity import SERVER, new_request_id, presented_key, set_caller
from gateway.web.responses.dialect import InputTokensDialect
from gateway.web.responses.exchange import ResponsesExchange, serve_detachable
from gateway.web.responses.stored_responses import StoredResponseHandlers
from gateway.web.stored.object_stores import ObjectStores
from gateway.web.token_count import answer_token_count
from gateway.web.usage import own_usage

PREFIXES = ("/v1", "")
"""Every path is served with and without /v1: clients' base URLs are written either way."""

COHERE_RERANK = "/v2/rerank"
"""The path at which Cohere's clients ask for reranking, and at which engines serve it."""

ExchangeTask = Callable[[HttpExchange, Services], Awaitable[None]]
"""Serve one exchange: run it through the inference pipeline, or only count its prompt."""


def tenant_app(
    services: Services,
    drain_state: DrainState,
    *,
    body_bytes_max: int,
    body_seconds_max: float,
    local_names_only: Callable[[], bool],
    cors: CrossOriginPolicy | None,
    access_log: AccessLog | None,
    find_address: FindAddress,
    stores: ObjectStores,
) -> web.Application:
    """Return the application behind the `listen` settings.

    Args:
        services: The inference pipeline and what it needs.
        drain_state: Whether new requests are accepted; knows the tasks that are under way.
        body_bytes_max: Largest request body.
        body_seconds_max: Time in which a request body has to arrive.
        local_names_only: Whether the Host header has to name loopback; see error_middleware.
        cors: Which web pages may call the API; None for none.
        access_log: Gets one line per request; None for no log.
        find_address: Returns a client's address.
        stores: The stores of responses, files and batches.
    """
    for warning in (BadContentDispositionHeader, BadContentDispositionParam):
        # Malformed forms of clients: Python would print each of these warnings once, and remember it for ever.
        warnings.simplefilter("ignore", warning)
    responses, bodies = stores.responses, BodyBudget(body_bytes_max)
    exchange_options: dict[str, Any] = {
        "find_address": find_address,
        "bodies": bodies,
        "body_seconds_max": body_seconds_max,
        "unread_seconds_max": services.idle_seconds_max,
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

    def inference_handler(
        dialect: Callable[[str], Dialect],
        work: ExchangeTask = serve,
        exchange_type: type[HttpExchange] = HttpExchange,
    ) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            exchange = exchange_type(http, dialect, **exchange_options)
            task = asyncio.current_task()
            assert task is not None
            try:
                if drain_state.accepting:
                    under_way.add(task)  # Draining waits for it.
                    await work(exchange, services)
                else:
                    await exchange.fail(ShuttingDown())
            except ConnectionResetError:
                # The client has left, which is no error of the gateway; this answer is not sent.
                return exchange.response or web.Response()
            finally:
                under_way.discard(task)
                exchange.close()
            assert exchange.response is not None
            return exchange.response

        return handle

    async def responses_handler(http: web.Request) -> web.StreamResponse:
        """Serve POST /v1/responses in a task that may outlive this handler."""
        exchange = ResponsesExchange(http, responses, stores.background_responses, **exchange_options)
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

    async def show_usage(http: web.Request) -> web.Response:
        try:
            used = await own_usage(services.usage, await authenticate(http, USAGE), http.query.items())
        except GatewayError as err:
            return error_response(err, http)
        headers = {"server": SERVER, "x-request-id": new_request_id()}
        return web.Response(body=msgspec.json.encode(used), content_type="application/json", headers=headers)

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
            dialect_factory(surface, responses),
            exchange_type=FormExchange if surface in FORM_SURFACES else HttpExchange,
        )
        for surface in Surface
    } | {
        "messages/count_tokens": inference_handler(CountTokensDialect, answer_token_count),
        "responses": responses_handler,
        "responses/input_tokens": inference_handler(
            lambda request_id: InputTokensDialect(request_id, responses), answer_token_count
        ),
    }
    stored_object_routes = [
        *StoredResponseHandlers(
            responses, stores.background_responses, authenticate, idle_seconds_max=services.idle_seconds_max
        ).routes(),
        *FileHandlers(stores.tenant_files, authenticate, idle_seconds_max=body_seconds_max).routes(),
        *BatchHandlers(stores, authenticate, body_seconds_max=body_seconds_max).routes(),
        *MessageBatchHandlers(stores, authenticate, bodies, idle_seconds_max=body_seconds_max).routes(),
    ]
    for prefix in PREFIXES:
        for path, handler in inference_handlers.items():
            app.router.add_post(f"{prefix}/{path}", handler, expect_handler=answer_expect)
            allowed_methods[f"{prefix}/{path}"] = "POST"
        for method, path, handler in stored_object_routes:
            app.router.add_route(method, f"{prefix}/{path}", handler, expect_handler=answer_expect)
        app.router.add_get(f"{prefix}/models", models.list_all, expect_handler=answer_expect)
        app.router.add_get(f"{prefix}/models/{{model:.*}}", models.show, expect_handler=answer_expect)
        allowed_methods[f"{prefix}/models"] = "GET, HEAD"
        app.router.add_get(f"{prefix}/usage", show_usage, expect_handler=answer_expect)
        allowed_methods[f"{prefix}/usage"] = "GET, HEAD"

    app.router.add_post(COHERE_RERANK, inference_handlers[Surface.RERANK.value], expect_handler=answer_expect)
    allowed_methods[COHERE_RERANK] = "POST"

    async def describe(http: web.Request) -> web.Response:
        body = msgspec.json.encode(tenant_api_document(version("radixgate")))
        return web.Response(body=body, content_type="application/json", headers={"server": SERVER})

    app.router.add_get("/openapi.json", describe, expect_handler=answer_expect)

    async def not_found(http: web.Request) -> web.Response:
        allowed = allowed_methods.get(http.path.rstrip("/"))
        # A request with an allowed method is here because of a trailing slash: then 404 is right, and 405 is not.
        if allowed is not None and http.method not in allowed:
            return error_response(MethodNotAllowed(allowed), http)
        return error_response(NotFound(f"There is nothing at {http.method} {http.path[:200]}."), http)

    app.router.add_route("*", "/{anything:.*}", not_found, expect_handler=answer_expect)
    return app
