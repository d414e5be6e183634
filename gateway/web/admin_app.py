"""The web application of the operators' listener: health, metrics, the console, browser login, the admin API.

/health/* needs no authorization and accepts any host name, since probes call by address. /metrics may have a token
of its own. Everything else needs authorization. Where the settings name no token and no identity provider, every
caller on this machine is authorized, but the Host header must name loopback. The views of the console are in
operator_views.py; live_views.py streams them. The admin API itself is in gateway/adminapi.
"""

import asyncio
import socket
from contextlib import aclosing
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from gateway.adminapi.authorization import Authorization
from gateway.adminapi.problems import Problem, database_problem
from gateway.adminapi.requests import request_shown
from gateway.adminapi.routes import add_routes
from gateway.adminapi.services import admin_services
from gateway.app import Gateway
from gateway.database.database import DatabaseDown
from gateway.domain.errors import GatewayError
from gateway.explorer.activity_history import SAMPLE_SECONDS
from gateway.process.multiprocess import GatewayProcess
from gateway.settings.token_issuers import Role
from gateway.telemetry.exposition import expose_in_slices
from gateway.web.console import SECURITY_HEADERS, console_file, is_page
from gateway.web.live_views import REFRESH_SECONDS, LiveViews
from gateway.web.metrics_merge import merge_metrics, other_processes_metrics
from gateway.web.middleware.error_middleware import Handler, error_middleware
from gateway.web.openai.inference_requests import decode_request
from gateway.web.operator_views import OperatorViews, readiness
from gateway.web.playground import playground

SETTINGS_SECONDS = 10.0
"""How often a page that watches the settings is refreshed."""


def admin_app(gateway: Gateway, process: GatewayProcess | None = None) -> web.Application:
    """Return the application behind the `admin` settings.

    `process` says which of several gateway processes this one is; the first answers /metrics for all of them.
    """
    services = admin_services(gateway, decode_request)
    authorization = services.authorization
    views, live = OperatorViews(gateway), LiveViews()
    try_model = playground(gateway)

    async def alive(http: web.Request) -> web.Response:
        return _json({"live": True})

    async def ready(http: web.Request) -> web.Response:
        state = readiness(gateway)
        return _json(state, status=200 if state["ready"] else 503)

    async def all_metrics(http: web.Request) -> web.StreamResponse:
        if http.transport is None or http.transport.get_extra_info("socket").family != socket.AF_UNIX:
            # Other processes of this gateway use its own socket.
            authorization.authorize_metrics(http)
        if process is None or process.number:
            return await metrics(http)
        accept = http.headers.get("Accept", "")
        encode, content_type = choose_encoder(accept)
        asking = asyncio.create_task(other_processes_metrics(process, accept))
        own = b"".join([text async for text in expose_in_slices(gateway.metrics, encode)])
        texts = {process.number: own, **await asking}
        text = await asyncio.to_thread(merge_metrics, texts)
        return _compressed(http, web.Response(body=text, headers={"content-type": content_type}))

    async def metrics(http: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(http.headers.get("Accept", ""))
        response, complete = web.StreamResponse(headers={"content-type": content_type}), False
        await _compressed(http, response).prepare(http)
        try:
            async with aclosing(expose_in_slices(gateway.metrics, encode)) as slices:
                async for text in slices:
                    await response.write(text)
            complete = True
        except ConnectionResetError:
            pass  # The client has left.
        finally:
            # A started answer cannot become an error; the cut connection shows the client that it is incomplete.
            if not complete and http.transport is not None:
                http.transport.abort()
        return response

    async def one_request(http: web.Request) -> web.Response:
        return _json(await request_shown(views.explorer, http.match_info["id"]))

    async def session(http: web.Request) -> web.Response:
        principal = await authorization.authorize(http, "viewer")
        logged_in = authorization.sessions is not None and await authorization.sessions.find(http) is not None
        return _json({"name": principal.name, "role": principal.role, "login": logged_in})

    async def no_database(http: web.Request) -> web.Response:
        raise Problem(404, "Tenants and keys come from the settings file only (database.url: none).")

    async def to_page(http: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/ui/")

    health = frozenset({"/health/live", "/health/ready"})
    app = web.Application(
        middlewares=[
            error_middleware(admin_error, local_names_only=lambda: authorization.open, any_host=health)
        ]
    )
    app.on_shutdown.append(live.close)
    app.router.add_get("/health/live", alive)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", _with_problems(all_metrics))
    for name, view, refresh_seconds in (
        ("overview", views.overview, REFRESH_SECONDS),
        ("history", views.history, float(SAMPLE_SECONDS)),
        ("queue", views.queue, REFRESH_SECONDS),
        ("index", views.index, REFRESH_SECONDS),
        ("requests", views.requests, REFRESH_SECONDS),
        ("policies", views.policies, REFRESH_SECONDS),
        ("settings", views.settings, SETTINGS_SECONDS),
        ("workers", views.workers, REFRESH_SECONDS),
    ):
        handler = _guarded(authorization, live.handler(view, refresh_seconds))
        app.router.add_get(f"/admin/v1/{name}", handler)
    app.router.add_get("/admin/v1/requests/{id}", _guarded(authorization, one_request))
    app.router.add_post("/admin/v1/playground", _guarded(authorization, try_model, role="operator"))
    if services.api is not None:
        add_routes(app, services.api, authorization)
    else:
        app.router.add_route("*", "/admin/v1/{anything:.*}", _with_problems(no_database))
    if services.login is not None:
        app.router.add_get("/ui/login", _with_problems(services.login.begin))
        app.router.add_get("/ui/callback", _with_problems(services.login.callback))
        app.router.add_post("/ui/logout", _with_problems(services.login.logout))
    app.router.add_get("/ui/session", _guarded(authorization, session))
    guarded_page = _guarded(authorization, console_file, to_login=services.login is not None)

    async def page(http: web.Request) -> web.StreamResponse:
        # The files contain no data. Pages ask the user for a token, or take it from their address.
        begins_at_login = services.login is not None and is_page(http) and "token" not in http.query
        is_public = authorization.has_admin_token and not begins_at_login
        return await (console_file if is_public else guarded_page)(http)

    app.router.add_get("/ui/{file:.*}", _with_problems(page))
    app.router.add_get("/ui", to_page)
    app.router.add_get("/", to_page)
    return app


def _compressed(http: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Return the response, compressed if the client accepts gzip: metrics shrink to a twentieth."""
    response.headers["vary"] = "Accept, Accept-Encoding"
    if "gzip" in http.headers.get("Accept-Encoding", ""):
        response.enable_compression(web.ContentCoding.gzip)
    return response


def _with_problems(handle: Handler) -> Handler:
    """Return a handler that answers errors of the given handler with a problem document."""

    async def answer(http: web.Request) -> web.StreamResponse:
        try:
            return await handle(http)
        except Problem as problem:
            return problem.response(http.path)
        except (DatabaseDown, TimeoutError) as err:
            return database_problem(err).response(http.path)

    return answer


def _guarded(
    authorization: Authorization, handle: Handler, *, to_login: bool = False, role: Role = "viewer"
) -> Handler:
    """Return a handler for operators of at least this role.

    Args:
        authorization: Authorizes the callers.
        handle: Answers them.
        to_login: Whether other callers are redirected to the login.
        role: The role that callers need.
    """

    async def check(http: web.Request) -> web.StreamResponse:
        try:
            await authorization.authorize(http, role)
        except Problem as problem:
            if problem.status == 401 and to_login and "Authorization" not in http.headers:
                raise web.HTTPSeeOther(f"/ui/login?{urlencode({'to': http.path})}") from None
            raise
        return await handle(http)

    return _with_problems(check)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(value),
        content_type="application/json",
        headers=SECURITY_HEADERS,
    )


def admin_error(error: GatewayError, http: web.BaseRequest | None = None) -> web.Response:
    """Return the problem document for a failure outside the handlers."""
    path = http.path if http is not None else None
    return Problem(error.status, error.message, error.headers()).response(path)
