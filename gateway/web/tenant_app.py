"""The tenants' listener: which addresses there are, and nothing else of a worker's API passes."""

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import BadContentDispositionHeader, BadContentDispositionParam, web

from gateway.domain.errors import GatewayError, MethodNotAllowed, NotFound, ShuttingDown
from gateway.domain.request import FORMS, Surface
from gateway.domain.tenant import INFERENCE, USAGE, Tenant
from gateway.pipeline import Services, serve
from gateway.process.drain_state import DrainState
from gateway.telemetry.access_log import AccessLog
from gateway.web import dialect_factory
from gateway.web.anthropic.batches import MessageBatchHandlers
from gateway.web.anthropic.dialect import CountTokensDialect
from gateway.web.bodies.body_reader import BodyBudget
from gateway.web.client_address import FindAddress
from gateway.web.dialect import Dialect
from gateway.web.error_response import error_response
from gateway.web.exchange import HttpExchange
from gateway.web.middleware.access_middleware import access
from gateway.web.middleware.cors import CrossOriginPolicy
from gateway.web.middleware.error_middleware import Handler, boundary, expectations
from gateway.web.models import ModelHandlers
from gateway.web.openai.audio_forms import FormExchange
from gateway.web.openai.batches import BatchHandlers
from gateway.web.openai.files import FileHandlers
from gateway.web.openapi import document
from gateway.web.request_identity import SERVER, new_request_id, presented_key, set_caller
from gateway.web.responses.dialect import InputTokensDialect
from gateway.web.responses.exchange import ResponsesExchange, parting
from gateway.web.responses.stored_responses import StoredResponseHandlers
from gateway.web.stored.object_stores import ObjectStores
from gateway.web.token_count import count
from gateway.web.usage import own_usage

PREFIXES = ("/v1", "")
"""People write base URLs with and without /v1."""

COHERE_RERANK = "/v2/rerank"
"""Where Cohere's clients ask for it, and engines answer."""

Work = Callable[[HttpExchange, Services], Awaitable[None]]


def tenant_app(
    at: Services,
    drain_state: DrainState,
    *,
    body_bytes_max: int,
    body_seconds_max: float,
    local_names_only: Callable[[], bool],
    browsers: CrossOriginPolicy | None,
    access_log: AccessLog | None,
    find_address: FindAddress,
    kept: ObjectStores,
) -> web.Application:
    """The application behind `listen`. `local_names_only`: see boundary. `browsers`: None: nothing is for them.

    `access_log`: gets a line a request.
    """
    for misspelt in (BadContentDispositionHeader, BadContentDispositionParam):
        # By clients, in forms: Python would print each of these once, and keep it for ever.
        warnings.simplefilter("ignore", misspelt)
    responses, bodies = kept.responses, BodyBudget(body_bytes_max)
    exchanging: dict[str, Any] = {
        "find_address": find_address,
        "bodies": bodies,
        "body_seconds_max": body_seconds_max,
        "unread_seconds_max": at.idle_seconds_max,
    }

    async def tenant_of(http: web.Request, scope: str = INFERENCE) -> Tenant:
        tenant = await at.authentication.admit(presented_key(http.headers), lambda: find_address(http), scope)
        set_caller(http, tenant)
        return tenant

    async def inside(exchange: HttpExchange, work: Work) -> None:
        task = asyncio.current_task()
        assert task is not None
        drain_state.requests.add(task)
        try:
            await work(exchange, at)
        finally:
            drain_state.requests.discard(task)

    def infer(
        dialect: Callable[[str], Dialect], work: Work = serve, by: type[HttpExchange] = HttpExchange
    ) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            exchange = by(http, dialect, **exchanging)
            try:
                if drain_state.accepting:
                    await inside(exchange, work)
                else:
                    await exchange.fail(ShuttingDown())
            except ConnectionResetError:
                # The client has left, which is no error of anybody's; nobody will read this answer.
                return exchange.response or web.Response()
            finally:
                exchange.close()
            assert exchange.response is not None
            return exchange.response

        return handle

    async def respond(http: web.Request) -> web.StreamResponse:
        """As `infer`, in a task that may outlive this handler."""
        exchange = ResponsesExchange(http, responses, kept.runs, **exchanging)
        try:
            if not drain_state.accepting:
                await exchange.fail(ShuttingDown())
            else:
                await parting(exchange, asyncio.create_task(inside(exchange, serve)))
        except ConnectionResetError:
            return exchange.response or web.Response()
        finally:
            exchange.close()
        assert exchange.response is not None
        return exchange.response

    async def show_usage(http: web.Request) -> web.Response:
        try:
            used = await own_usage(at.usage, await tenant_of(http, USAGE), http.query.items())
        except GatewayError as err:
            return error_response(err, http)
        headers = {"server": SERVER, "x-request-id": new_request_id()}
        return web.Response(body=msgspec.json.encode(used), content_type="application/json", headers=headers)

    around = [boundary(error_response, local_names_only=local_names_only)]
    if access_log is not None:
        around.insert(0, access(access_log))
    if browsers is not None:
        around.append(browsers.preflight())
    app = web.Application(middlewares=around)
    if browsers is not None:
        app.on_response_prepare.append(browsers.marking())
    known: dict[str, str] = {}
    models = ModelHandlers(at.catalogue, tenant_of)
    answering = {
        surface.value: infer(
            dialect_factory.of(surface, responses), by=FormExchange if surface in FORMS else HttpExchange
        )
        for surface in Surface
    } | {
        "messages/count_tokens": infer(CountTokensDialect, count),
        "responses": respond,
        "responses/input_tokens": infer(lambda request_id: InputTokensDialect(request_id, responses), count),
    }
    stored = [
        *StoredResponseHandlers(responses, kept.runs, tenant_of, idle_seconds_max=at.idle_seconds_max).routes(),
        *FileHandlers(kept.tenant_files, tenant_of, idle_seconds_max=body_seconds_max).routes(),
        *BatchHandlers(kept, tenant_of, body_seconds_max=body_seconds_max).routes(),
        *MessageBatchHandlers(kept, tenant_of, bodies, idle_seconds_max=body_seconds_max).routes(),
    ]
    for prefix in PREFIXES:
        for path, handler in answering.items():
            app.router.add_post(f"{prefix}/{path}", handler, expect_handler=expectations)
            known[f"{prefix}/{path}"] = "POST"
        for method, path, handler in stored:
            app.router.add_route(method, f"{prefix}/{path}", handler, expect_handler=expectations)
        app.router.add_get(f"{prefix}/models", models.list_all, expect_handler=expectations)
        app.router.add_get(f"{prefix}/models/{{model:.*}}", models.show, expect_handler=expectations)
        known[f"{prefix}/models"] = "GET, HEAD"
        app.router.add_get(f"{prefix}/usage", show_usage, expect_handler=expectations)
        known[f"{prefix}/usage"] = "GET, HEAD"

    app.router.add_post(COHERE_RERANK, answering[Surface.RERANK.value], expect_handler=expectations)
    known[COHERE_RERANK] = "POST"

    async def describe(http: web.Request) -> web.Response:
        body = msgspec.json.encode(document.document(version("radixgate")))
        return web.Response(body=body, content_type="application/json", headers={"server": SERVER})

    app.router.add_get("/openapi.json", describe, expect_handler=expectations)

    async def nothing_here(http: web.Request) -> web.Response:
        allowed = known.get(http.path.rstrip("/"))
        # With its method allowed it has come here by a slash too many, and would be told nothing by a 405.
        if allowed is not None and http.method not in allowed:
            return error_response(MethodNotAllowed(allowed), http)
        return error_response(NotFound(f"There is nothing at {http.method} {http.path[:200]}."), http)

    app.router.add_route("*", "/{anything:.*}", nothing_here, expect_handler=expectations)
    return app
