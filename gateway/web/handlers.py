"""The tenants' listener: which addresses there are, and nothing else of a worker's API passes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from gateway.doors import Doors
from gateway.errors import (
    GatewayError,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    ShuttingDown,
)
from gateway.model import Model
from gateway.pipeline import Services, serve
from gateway.request import Surface
from gateway.tenants.tenant import INFERENCE, USAGE, Tenant
from gateway.web.bodies import Bodies
from gateway.web.boundary import Handler, boundary, expectations
from gateway.web.client_address import FindAddress
from gateway.web.exchange import SERVER, HttpExchange, new_request_id, presented_key
from gateway.web.usage import own_usage

PREFIXES = ("/v1", "")
"""People write base URLs with and without /v1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One entry of /v1/models."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "radixgate"


def tenant_app(
    at: Services,
    doors: Doors,
    *,
    body_bytes_max: int,
    body_seconds_max: float,
    local_names_only: Callable[[], bool],
    find_address: FindAddress,
) -> web.Application:
    """The application behind `listen`. `local_names_only`: see boundary."""
    bodies = Bodies(body_bytes_max)

    async def tenant_of(http: web.Request, scope: str = INFERENCE) -> Tenant:
        return await at.entrance.admit(presented_key(http.headers), lambda: find_address(http), scope)

    async def inside(exchange: HttpExchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        doors.inside.add(task)
        try:
            await serve(exchange, at)
        finally:
            doors.inside.discard(task)

    def infer(surface: Surface) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            exchange = HttpExchange(
                http,
                surface,
                find_address=find_address,
                bodies=bodies,
                body_seconds_max=body_seconds_max,
                unread_seconds_max=at.idle_seconds_max,
            )
            try:
                if doors.open:
                    await inside(exchange)
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

    async def list_models(http: web.Request) -> web.Response:
        try:
            cards = _visible(at, await tenant_of(http))
        except GatewayError as err:
            return failure(err)
        return _json({"object": "list", "data": cards})

    async def show_model(http: web.Request) -> web.Response:
        name = http.match_info["model"]
        try:
            cards = _visible(at, await tenant_of(http))
            found = next((card for card in cards if card.id == name), None)
            if found is None:
                raise ModelNotFound(name)
        except GatewayError as err:
            return failure(err)
        return _json(found)

    async def show_usage(http: web.Request) -> web.Response:
        try:
            return _json(await own_usage(at.usage, await tenant_of(http, USAGE), http.query.items()))
        except GatewayError as err:
            return failure(err)

    app = web.Application(middlewares=[boundary(failure, local_names_only=local_names_only)])
    known: dict[str, str] = {}
    for prefix in PREFIXES:
        for surface in Surface:
            app.router.add_post(f"{prefix}/{surface.value}", infer(surface), expect_handler=expectations)
            known[f"{prefix}/{surface.value}"] = "POST"
        app.router.add_get(f"{prefix}/models", list_models, expect_handler=expectations)
        app.router.add_get(f"{prefix}/models/{{model:.*}}", show_model, expect_handler=expectations)
        known[f"{prefix}/models"] = "GET, HEAD"
        app.router.add_get(f"{prefix}/usage", show_usage, expect_handler=expectations)
        known[f"{prefix}/usage"] = "GET, HEAD"

    async def nothing_here(http: web.Request) -> web.Response:
        allowed = known.get(http.path.rstrip("/"))
        if allowed is not None:
            return failure(MethodNotAllowed(allowed))
        return failure(NotFound(f"There is nothing at {http.method} {http.path[:200]}."))

    app.router.add_route("*", "/{anything:.*}", nothing_here, expect_handler=expectations)
    return app


def failure(error: GatewayError) -> web.Response:
    """An error outside of the pipeline."""
    headers = {"server": SERVER, "x-request-id": new_request_id(), **error.headers()}
    return web.Response(
        status=error.status, body=error.body(), content_type="application/json", headers=headers
    )


def _visible(at: Services, tenant: Tenant) -> list[ModelCard]:
    """What this key may call."""
    models: list[tuple[str, Model]] = sorted(at.catalogue.names().items())
    return [ModelCard(id=name, created=m.created) for name, m in models if tenant.allows(m.name)]


def _json(value: object) -> web.Response:
    headers = {"server": SERVER, "x-request-id": new_request_id()}
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)
