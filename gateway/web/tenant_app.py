"""The web application of the tenants' listener: its paths and their handlers.

Only the paths in this file reach a worker; every other path of a worker's API gets a 404.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import BadContentDispositionHeader, BadContentDispositionParam, web

from gateway.domain.errors import MethodNotAllowed, NotFound
from gateway.domain.memory_budget import MemoryBudget
from gateway.domain.request import Surface
from gateway.domain.tenant import INFERENCE, USAGE, Tenant
from gateway.explorer.request_explorer import RequestExplorer
from gateway.pipeline import Services
from gateway.process.drain_state import DrainState
from gateway.telemetry.access_log import AccessLog
from gateway.web.anthropic.batches import MessageBatchHandlers
from gateway.web.bodies.expectation import defer_expect
from gateway.web.cell_relay import CellRelay
from gateway.web.client_address import FindAddress
from gateway.web.console import tenant_page_file
from gateway.web.direct.connection import DirectRoutes
from gateway.web.error_response import error_response
from gateway.web.inference_handlers import InferenceHandlers
from gateway.web.middleware.access_middleware import access_log_middleware
from gateway.web.middleware.cors import CrossOriginPolicy
from gateway.web.middleware.error_middleware import Handler, error_middleware
from gateway.web.model_list import ModelHandlers
from gateway.web.openai.batches import BatchHandlers
from gateway.web.openai.deployments import DEPLOYMENT_SURFACES
from gateway.web.openai.files import FileHandlers
from gateway.web.openapi.document import tenant_api_document
from gateway.web.own_usage.own_usage_handlers import OwnUsageHandlers
from gateway.web.path_spellings import AZURE_PREFIXES, PREFIXES, spellings
from gateway.web.request_identity import SERVER, presented_key, set_caller
from gateway.web.responses.conversations import ConversationHandlers
from gateway.web.responses.stored_responses import StoredResponseHandlers
from gateway.web.stored.json_handlers import AuthenticateTenant
from gateway.web.stored.object_stores import ObjectStores

DIRECT_ROUTES = web.AppKey("direct_routes", DirectRoutes)
"""The inference requests that are served without aiohttp's server.

None where cells relay requests.
"""

COHERE_RERANK = "/v2/rerank"
"""The path of reranking in Cohere's API and in engines."""


def tenant_app(
    services: Services,
    drain_state: DrainState,
    *,
    memory: MemoryBudget,
    body_bytes_max: int,
    body_seconds_max: float,
    drain_seconds: float,
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
        drain_state: Whether new requests are accepted, and the tasks under way.
        memory: The memory that all requests share.
        body_bytes_max: Largest request body.
        body_seconds_max: Time in which a request body has to arrive.
        drain_seconds: How long running requests may continue when the gateway stops.
        local_names_only: Whether the Host header has to name loopback; see foreign_pages.
        cors: Which web pages may call the API; None for none.
        access_log: Gets one line per request; None for no log.
        find_address: Returns a client's address.
        stores: The stores of responses, files and batches.
        cells: Relays requests of other cells' tenants; None without cells.
        explorer: Finds finished requests; None where none are kept.
    """
    _ignore_warnings_about_forms()
    if cells is not None:
        find_address = cells.address_finder(find_address)
    exchange_options: dict[str, Any] = {
        "find_address": find_address,
        "memory": memory,
        "body_bytes_max": body_bytes_max,
        "body_seconds_max": body_seconds_max,
        "unread_seconds_max": services.unread_seconds_max,
        "cells": cells,
        "logged": access_log is not None,
    }
    authenticate = _authentication(services, find_address, INFERENCE)
    app = _application(local_names_only, cors, access_log)
    routes = _Routes(app)
    inference = InferenceHandlers(services, drain_state, stores, exchange_options)
    inference_handlers = inference.by_path()
    _add_inference(routes, inference, inference_handlers)
    context_length = services.dispatch.fleet.context_length
    _add_models(routes, ModelHandlers(services.catalogue, authenticate, context_length))
    authenticate_for_usage = _authentication(services, find_address, USAGE)
    own_usage = OwnUsageHandlers(services, explorer, authenticate_for_usage, cells, find_address)
    for path, handler in own_usage.by_path().items():
        routes.add("GET", path, handler)
    _add_stored_objects(routes, services, stores, authenticate, memory, body_seconds_max)
    routes.add_exact("GET", "/ui/{file:[a-z.]*}", tenant_page_file)
    routes.add_exact("GET", "/openapi.json", _describe)
    routes.add_exact("*", "/{anything:.*}", routes.not_found)
    if cells is None:
        app[DIRECT_ROUTES] = _direct_routes(
            inference.served_directly(inference_handlers), local_names_only, cors, access_log
        )
    app.on_response_prepare.append(partial(_close_connection_while_not_ready, drain_state))
    app.on_shutdown.append(partial(wait_before_aiohttp_closes, drain_state, drain_seconds))
    return app


def _authentication(services: Services, find_address: FindAddress, scope: str) -> AuthenticateTenant:
    """Return the function that finds the tenant of a request with a key of this scope, and notes it for the log."""

    async def authenticate(http: web.Request) -> Tenant:
        tenant = await services.authentication.authenticate(
            presented_key(http.headers), lambda: find_address(http), scope
        )
        set_caller(http, tenant)
        return tenant

    return authenticate


async def _close_connection_while_not_ready(
    drain_state: DrainState, _: web.Request, answer: web.StreamResponse
) -> None:
    """Make an answer the last of its connection while the gateway is not ready, as when it will stop."""
    if not drain_state.ready:
        answer.force_close()
        answer.headers["Connection"] = "close"  # aiohttp has chosen the headers before.


async def wait_before_aiohttp_closes(
    drain_state: DrainState, seconds_max: float, app: web.Application
) -> None:
    """Wait for the running inference requests: aiohttp itself waits only for the requests that it serves."""
    await drain_state.wait_for_requests(seconds_max)


def _add_inference(routes: "_Routes", inference: InferenceHandlers, handlers: Mapping[str, Handler]) -> None:
    """Add the paths of inference requests, with those of Cohere's and Azure's APIs."""
    for path, handler in handlers.items():
        routes.add("POST", path, handler)
    routes.add_exact("POST", COHERE_RERANK, handlers[Surface.RERANK.value])
    for surface in DEPLOYMENT_SURFACES:
        for prefix in AZURE_PREFIXES:
            routes.add_exact("POST", f"{prefix}/{surface.value}", inference.at_deployment(surface))


def _add_models(routes: "_Routes", models: ModelHandlers) -> None:
    """Add the paths of the list of models and of one model."""
    routes.add("GET", "models", models.list_all)
    for prefix in PREFIXES:
        routes.add_exact("GET", f"{prefix}/models/{{model:.*}}", models.show)


def _add_stored_objects(
    routes: "_Routes",
    services: Services,
    stores: ObjectStores,
    authenticate: AuthenticateTenant,
    memory: MemoryBudget,
    body_seconds_max: float,
) -> None:
    """Add the paths of responses, conversations, files and batches."""
    for method, path, handler in (
        *StoredResponseHandlers(
            stores.responses,
            stores.background_responses,
            authenticate,
            unread_seconds_max=services.unread_seconds_max,
        ).routes(),
        *ConversationHandlers(
            stores.conversations, authenticate, memory=memory, body_seconds_max=body_seconds_max
        ).routes(),
        *FileHandlers(stores.tenant_files, authenticate, idle_seconds_max=body_seconds_max).routes(),
        *BatchHandlers(stores, authenticate, body_seconds_max=body_seconds_max).routes(),
        *MessageBatchHandlers(stores, authenticate, memory, idle_seconds_max=body_seconds_max).routes(),
    ):
        routes.add(method, path, handler)


def _direct_routes(
    handlers: Mapping[str, Handler],
    local_names_only: Callable[[], bool],
    cors: CrossOriginPolicy | None,
    access_log: AccessLog | None,
) -> DirectRoutes:
    """Return the routes of plain inference requests, with the access log that middleware writes for others."""
    around = access_log_middleware(access_log) if access_log is not None else None
    return DirectRoutes(
        {
            path: partial(around, handler=handler) if around is not None else handler
            for name, handler in handlers.items()
            for path in spellings(name)
        },
        local_names_only,
        answer_headers=cors.headers_without_origin if cors is not None else {},
    )


def _ignore_warnings_about_forms() -> None:
    """Ignore the warnings about clients' malformed forms.

    Python would print each of them once, and keep it in memory for ever.
    """
    for warning in (BadContentDispositionHeader, BadContentDispositionParam):
        warnings.simplefilter("ignore", warning)


def _application(
    local_names_only: Callable[[], bool], cors: CrossOriginPolicy | None, access_log: AccessLog | None
) -> web.Application:
    """Return an application without paths, with the middleware for the access log, errors and web pages."""
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
    return app


class _Routes:
    """Adds handlers to an application, and records the methods of each path."""

    def __init__(self, app: web.Application) -> None:
        self._router = app.router
        self._methods: dict[str, list[str]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path in all its spellings."""
        for spelling in spellings(path):
            self.add_exact(method, spelling, handler)

    def add_exact(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path in exactly this spelling; GET includes HEAD."""
        if method == "GET":
            self._router.add_get(path, handler, expect_handler=defer_expect)
        else:
            self._router.add_route(method, path, handler, expect_handler=defer_expect)
        self._methods.setdefault(path, []).extend(["GET", "HEAD"] if method == "GET" else [method])

    async def not_found(self, http: web.Request) -> web.Response:
        """Answer a request for a path, or with a method, that is not served."""
        methods = self._methods.get(http.path.rstrip("/"))
        if methods is not None and http.method not in methods:
            return error_response(MethodNotAllowed(", ".join(methods)), http)
        return error_response(NotFound(f"There is nothing at {http.method} {http.path[:200]}."), http)


async def _describe(http: web.Request) -> web.Response:
    body = msgspec.json.encode(tenant_api_document(version("radixgate")))
    return web.Response(body=body, content_type="application/json", headers={"server": SERVER})
