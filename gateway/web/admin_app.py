"""The web application of the operators' listener: health, metrics, the dashboard, browser login, the admin API.

/health/* needs no authorization and answers to any host name, as probes ask by address. /metrics has a token of its
own, if any. Everything else needs authorization; where the settings name no token and no identity provider, every
caller on this machine is authorized, and then the Host header has to name loopback too. The data of the dashboard
is below /ui and /admin/v1. The admin API itself is in gateway/adminapi.
"""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import aclosing
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from gateway.adminapi.authorization import Authorization
from gateway.adminapi.index_view import index_shown
from gateway.adminapi.problems import Problem, database_problem
from gateway.adminapi.requests import request_list, request_shown
from gateway.adminapi.routes import add_routes
from gateway.adminapi.services import admin_services
from gateway.app import Gateway
from gateway.database.database import DatabaseDown
from gateway.domain.errors import GatewayError
from gateway.explorer.activity import NO_ACTIVITY, ActivityReport
from gateway.explorer.request_explorer import RequestExplorer
from gateway.fleet.worker import Worker
from gateway.process.multiprocess import GatewayProcess
from gateway.telemetry.exposition import expose_in_slices
from gateway.web.console import SECURITY_HEADERS, console_file, is_page
from gateway.web.metrics_merge import merge_metrics, other_processes_metrics
from gateway.web.middleware.error_middleware import Handler, error_middleware
from gateway.web.openai.inference_requests import decode_request

ISSUER_STATES = ("none", "known", "away", "not read", "stale")
"""From good to bad. `away`: the provider does not answer, but its known keys are used. Later, tokens get 503."""


def admin_app(gateway: Gateway, process: GatewayProcess | None = None) -> web.Application:
    """Return the application behind the `admin` settings.

    `process` says which of several gateway processes this one is; the first answers /metrics for all of them.
    """
    services = admin_services(gateway, decode_request)
    authorization = services.authorization

    async def live(http: web.Request) -> web.Response:
        return _json({"live": True})

    async def ready(http: web.Request) -> web.Response:
        state = readiness(gateway)
        return _json(state, status=200 if state["ready"] else 503)

    async def all_metrics(http: web.Request) -> web.StreamResponse:
        if http.transport is None or http.transport.get_extra_info("socket").family != socket.AF_UNIX:
            # Other processes of this gateway ask at its own socket.
            authorization.authorize_metrics(http)
        if process is None or process.number:
            return await metrics(http)
        accept = http.headers.get("Accept", "")
        encode, content_type = choose_encoder(accept)
        asking = asyncio.create_task(other_processes_metrics(process, accept))
        own = b"".join([text async for text in expose_in_slices(gateway.registry, encode)])
        texts = {process.number: own, **await asking}
        text = await asyncio.to_thread(merge_metrics, texts)
        return _compressed(http, web.Response(body=text, headers={"content-type": content_type}))

    async def metrics(http: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(http.headers.get("Accept", ""))
        response, complete = web.StreamResponse(headers={"content-type": content_type}), False
        await _compressed(http, response).prepare(http)
        try:
            async with aclosing(expose_in_slices(gateway.registry, encode)) as slices:
                async for text in slices:
                    await response.write(text)
            complete = True
        except ConnectionResetError:
            pass  # The client has left.
        finally:
            # An answer that has started cannot become an error: the connection is cut, so that the client knows.
            if not complete and http.transport is not None:
                http.transport.abort()
        return response

    async def overview(http: web.Request) -> web.Response:
        queues, activity = await asyncio.gather(gateway.queues.report(), gateway.activity.report())
        return _json({**overview_of(gateway, activity), "queue": msgspec.to_builtins(queues)})

    async def queue(http: web.Request) -> web.Response:
        return _json(msgspec.to_builtins(await gateway.queues.report()))

    async def requests(http: web.Request) -> web.Response:
        return _json(msgspec.to_builtins(await request_list(explorer(), http.query)))

    async def index(http: web.Request) -> web.Response:
        return _json(msgspec.to_builtins(await index_shown(gateway.index.index.replica, http.query)))

    async def request(http: web.Request) -> web.Response:
        return _json(msgspec.to_builtins(await request_shown(explorer(), http.match_info["id"])))

    def explorer() -> RequestExplorer:
        if gateway.explorer is None:
            raise Problem(404, "No requests are remembered (telemetry.requests.kept_max: 0).")
        return gateway.explorer

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
    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", _with_problems(all_metrics))
    app.router.add_get("/admin/v1/overview", _guarded(authorization, overview))
    app.router.add_get("/admin/v1/queue", _guarded(authorization, queue))
    app.router.add_get("/admin/v1/index", _guarded(authorization, index))
    app.router.add_get("/admin/v1/requests", _guarded(authorization, requests))
    app.router.add_get("/admin/v1/requests/{id}", _guarded(authorization, request))
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
        # The files contain no data: pages ask for a token by themselves, or take it from their address.
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
    """Return a handler that answers what the given handler raises as a problem document."""

    async def answer(http: web.Request) -> web.StreamResponse:
        try:
            return await handle(http)
        except Problem as problem:
            return problem.response(http.path)
        except (DatabaseDown, TimeoutError) as err:
            return database_problem(err).response(http.path)

    return answer


def _guarded(authorization: Authorization, handle: Handler, *, to_login: bool = False) -> Handler:
    """Return a handler for viewers; with `to_login`, other callers are redirected to the login."""

    async def check(http: web.Request) -> web.StreamResponse:
        try:
            await authorization.authorize(http, "viewer")
        except Problem as problem:
            if problem.status == 401 and to_login and "Authorization" not in http.headers:
                raise web.HTTPSeeOther(f"/ui/login?{urlencode({'to': http.path})}") from None
            raise
        return await handle(http)

    return _with_problems(check)


def readiness(gateway: Gateway) -> dict[str, object]:
    """Return the state of the gateway.

    A gateway is ready while it accepts requests, has a routable worker, and can check API keys.
    """
    workers = {worker.id: worker.health.health.value for worker in gateway.fleet}
    routable = any(worker.health.routable for worker in gateway.fleet)
    database = gateway.records.directory.state if gateway.records.directory is not None else "none"
    return {
        "ready": gateway.drain_state.ready
        and (routable or not workers)
        and (gateway.records.directory is None or gateway.records.directory.usable),
        "draining": not gateway.drain_state.ready,
        "workers": workers,
        "redis": "away" if gateway.quotas.store.away else "shared",
        "database": database,
        "token_issuers": _worst(issuer.state for issuer in gateway.every_issuer),
        "index": "following" if gateway.index.reader.up else "standing still",
        "failing_loops": [name for name, state in gateway.supervisor.loops.items() if state.failing],
    }


def _worst(states: Iterable[str]) -> str:
    """Return the worst state of all issuers; `none` where there is none."""
    return max(states, key=ISSUER_STATES.index, default="none")


def overview_of(gateway: Gateway, activity: ActivityReport) -> dict[str, object]:
    """Return everything on the dashboard except the queues; `activity` is that of all gateways."""
    dispatch = gateway.services.dispatch
    stats = dispatch.index.stats()
    return {
        "version": gateway.version,
        "policy": dispatch.router.policy_name,
        **readiness(gateway),
        "gateways": activity.gateways,
        "all": activity.all,
        "workers": [
            {**_worker(worker), **activity.workers.get(worker.id, NO_ACTIVITY)} for worker in gateway.fleet
        ],
        "tenants": [{"id": tenant, **shown} for tenant, shown in sorted(activity.tenants.items())],
        "waiting": {model: len(room) for model, room in dispatch.rooms.all().items()},
        "prefixes": {"nodes": stats.nodes, "blocks": stats.blocks, "predictions": stats.predictions},
        "leases": len(dispatch.reservations.leases),
    }


def _worker(worker: Worker) -> dict[str, object]:
    return {
        "id": worker.id,
        "kind": worker.kind,
        "health": worker.health.health.value,
        "models": sorted(worker.models),
        "streams": worker.load.streams + worker.load.others.streams,
        "tokens_queued": worker.load.all_tokens_queued,
        "kv_tokens": worker.load.kv_tokens + worker.load.others.kv_tokens,
        "kv_tokens_max": worker.report.kv_tokens_max,
        "prefill_tokens_per_second": 1000 / worker.speed.ms_per_token,
        "failures": worker.failures,
    }


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
