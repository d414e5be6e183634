"""The web application of the operators' listener: health, metrics, the console, browser login, the admin API.

/health/* needs no authorization and accepts any host name, since probes call by address. /metrics may have a token
of its own. Everything else needs authorization. On a loopback host without admin.token and without a browser login,
every caller on this machine is a viewer, but the Host header must name loopback. The views of the console are in
operator_views.py; live_views.py streams them. The admin API itself is in gateway/adminapi.
"""

from urllib.parse import urlencode

import msgspec
from aiohttp import web

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
from gateway.web.console import SECURITY_HEADERS, console_file, is_page
from gateway.web.live_views import REFRESH_SECONDS, LiveViews
from gateway.web.metrics_handler import MetricsHandler
from gateway.web.middleware.error_middleware import Handler, error_middleware
from gateway.web.openai.inference_requests import decode_openai_request
from gateway.web.operator_views import OperatorViews, readiness
from gateway.web.playground import playground

HEALTH_PATHS = ("/health/live", "/health/ready")
"""Paths of liveness and readiness."""

SETTINGS_SECONDS = 10.0
"""How often a page that watches the settings is refreshed."""


def admin_app(gateway: Gateway, process: GatewayProcess | None = None) -> web.Application:
    """Return the application behind the `admin` settings.

    `process`: which of several gateway processes this one is; the first answers /metrics for all of them.
    """
    services = admin_services(gateway, decode_openai_request)
    authorization = services.authorization
    app = web.Application(
        middlewares=[
            error_middleware(
                admin_error, local_names_only=lambda: authorization.open, any_host=frozenset(HEALTH_PATHS)
            )
        ]
    )
    _add_health(app, gateway)
    app.router.add_get("/metrics", _with_problems(MetricsHandler(gateway, process, authorization)))
    _add_views(app, gateway, authorization)
    if services.api is not None:
        add_routes(app, services.api, authorization)
    else:
        app.router.add_route("*", "/admin/v1/{anything:.*}", _with_problems(_no_database))
    if services.login is not None:
        app.router.add_get("/ui/login", _with_problems(services.login.begin))
        app.router.add_get("/ui/callback", _with_problems(services.login.callback))
        app.router.add_post("/ui/logout", _with_problems(services.login.logout))
    _add_console(app, authorization, has_login=services.login is not None)
    return app


def _add_health(app: web.Application, gateway: Gateway) -> None:
    """Add the probes of liveness and readiness."""

    async def alive(http: web.Request) -> web.Response:
        return _json({"live": True})

    async def ready(http: web.Request) -> web.Response:
        state = readiness(gateway)
        return _json(state, status=200 if state["ready"] else 503)

    for path, handler in zip(HEALTH_PATHS, (alive, ready), strict=True):
        app.router.add_get(path, handler)


def _add_views(app: web.Application, gateway: Gateway, authorization: Authorization) -> None:
    """Add the views of the console, each as one answer or as a stream, and the playground."""
    views, live = OperatorViews(gateway), LiveViews()
    app.on_shutdown.append(live.close)
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

    async def one_request(http: web.Request) -> web.Response:
        return _json(await request_shown(views.explorer, http.match_info["id"]))

    app.router.add_get("/admin/v1/requests/{id}", _guarded(authorization, one_request))
    app.router.add_post("/admin/v1/playground", _guarded(authorization, playground(gateway), role="operator"))


def _add_console(app: web.Application, authorization: Authorization, *, has_login: bool) -> None:
    """Add the pages of the console, and the session of the operator that looks at them."""
    guarded_page = _guarded(authorization, console_file, to_login=has_login)

    async def session(http: web.Request) -> web.Response:
        principal = await authorization.authorize(http, "viewer")
        logged_in = authorization.sessions is not None and await authorization.sessions.find(http) is not None
        return _json({"name": principal.name, "role": principal.role, "login": logged_in})

    async def page(http: web.Request) -> web.StreamResponse:
        # The files contain no data. Pages have the user enter a token, or take it from their address.
        begins_at_login = has_login and is_page(http) and "token" not in http.query
        is_public = authorization.has_admin_token and not begins_at_login
        return await (console_file if is_public else guarded_page)(http)

    async def to_page(http: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/ui/")

    app.router.add_get("/ui/session", _guarded(authorization, session))
    app.router.add_get("/ui/{file:.*}", _with_problems(page))
    app.router.add_get("/ui", to_page)
    app.router.add_get("/", to_page)


async def _no_database(http: web.Request) -> web.Response:
    raise Problem(
        404,
        "Without a database (database.url: none) the admin API has only views of requests and of the present "
        "state. Tenants and keys come from the settings file only.",
    )


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
