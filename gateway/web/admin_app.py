"""The operators' listener: health, metrics, the page, the way in with a browser, and the API (gateway/adminapi).

/health/* and /metrics answer everybody who can connect. All else is behind the gate; where nothing that the
settings name opens it, it is open to whoever is on this machine, and then the host must be named as loopback too.
"""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from importlib.resources import files
from urllib.parse import urlencode

import msgspec
import orjson
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from gateway.adminapi.authorization import PAGE_COOKIE, Authorization
from gateway.adminapi.problems import Problem, no_database
from gateway.adminapi.routes import mount
from gateway.adminapi.services import admin_services
from gateway.app import Gateway
from gateway.database.database import DatabaseDown
from gateway.domain.errors import GatewayError
from gateway.fleet.worker import Worker
from gateway.process.multiprocess import GatewayProcess
from gateway.telemetry.exposition import expose_in_slices
from gateway.web.metrics_merge import merged, texts_of_others
from gateway.web.middleware.error_middleware import Handler, boundary
from gateway.web.openai import inference_requests

PAGE_FILES = {"": "index.html", "page.js": "page.js", "page.css": "page.css"}
ISSUER_STATES = ("none", "known", "away", "not read", "stale")
"""From good to bad: `away`: known keys go on; then they do not, and tokens get a 503."""

CONTENT_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "server": "radixgate",
}


def admin_app(gateway: Gateway, one: GatewayProcess | None = None) -> web.Application:
    """The application behind `admin`. `one`: which of several processes it is; the first speaks for all."""
    services = admin_services(gateway, inference_requests.decode_request)
    gate = services.gate

    async def live(http: web.Request) -> web.Response:
        return _json({"live": True})

    async def ready(http: web.Request) -> web.Response:
        state = readiness(gateway)
        return _json(state, status=200 if state["ready"] else 503)

    async def metrics_of_all(http: web.Request) -> web.StreamResponse:
        if one is None or one.number:
            return await metrics(http)
        accept = http.headers.get("Accept", "")
        encode, content_type = choose_encoder(accept)
        asking = asyncio.create_task(texts_of_others(one, accept))
        own = b"".join([text async for text in expose_in_slices(gateway.registry, encode)])
        texts = {one.number: own, **await asking}
        text = await asyncio.to_thread(merged, texts)
        return web.Response(body=text, headers={"content-type": content_type})

    async def metrics(http: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(http.headers.get("Accept", ""))
        response, whole = web.StreamResponse(headers={"content-type": content_type}), False
        await response.prepare(http)
        try:
            async with aclosing(expose_in_slices(gateway.registry, encode)) as slices:
                async for text in slices:
                    await response.write(text)
            whole = True
        except ConnectionResetError:
            pass  # Whoever asked has left.
        finally:
            # What has begun as an answer cannot become an error; without its end nobody takes it for all.
            if not whole and http.transport is not None:
                http.transport.abort()
        return response

    async def overview(http: web.Request) -> web.Response:
        return _json({**shown(gateway), "queue": msgspec.to_builtins(await gateway.queues.report())})

    async def queue(http: web.Request) -> web.Response:
        return _json(msgspec.to_builtins(await gateway.queues.report()))

    async def session(http: web.Request) -> web.Response:
        asker = await gate.admit(http, "viewer", page=True)
        has_one = gate.sessions is not None and await gate.sessions.find(http) is not None
        return _json({"name": asker.name, "role": asker.role, "login": has_one})

    async def no_records(http: web.Request) -> web.Response:
        raise Problem(404, "Tenants and keys come from the settings file only (database.url: none).")

    async def to_page(http: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/ui/")

    app = web.Application(middlewares=[boundary(admin_failure, local_names_only=lambda: gate.open)])
    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", metrics_of_all)
    app.router.add_get("/admin/v1/overview", _guarded(gate, overview))
    app.router.add_get("/admin/v1/queue", _guarded(gate, queue))
    if services.records is not None:
        mount(app, services.records, gate)
    else:
        app.router.add_route("*", "/admin/v1/{anything:.*}", _problems(no_records))
    if services.login is not None:
        app.router.add_get("/ui/login", _problems(services.login.begin))
        app.router.add_get("/ui/callback", _problems(services.login.come_back))
        app.router.add_post("/ui/logout", _problems(services.login.leave))
    app.router.add_get("/ui/session", _guarded(gate, session))
    app.router.add_get("/ui/{file:.*}", _guarded(gate, _page, to_login=services.login is not None))
    app.router.add_get("/ui", to_page)
    app.router.add_get("/", to_page)
    return app


def _problems(handle: Handler) -> Handler:
    """What it raises is said as problems are."""

    async def answer(http: web.Request) -> web.StreamResponse:
        try:
            return await handle(http)
        except Problem as problem:
            return problem.response(http.path)
        except (DatabaseDown, TimeoutError) as err:
            return no_database(err).response(http.path)

    return answer


def _guarded(gate: Authorization, handle: Handler, *, to_login: bool = False) -> Handler:
    """For whoever may look. `to_login`: who may not is shown the way in."""

    async def check(http: web.Request) -> web.StreamResponse:
        try:
            await gate.admit(http, "viewer", page=True)
        except Problem as problem:
            if problem.status == 401 and to_login and "Authorization" not in http.headers:
                raise web.HTTPSeeOther(f"/ui/login?{urlencode({'to': http.path})}") from None
            raise
        response = await handle(http)
        token = http.query.get("token")
        if token and gate.is_admin_token(token):
            # The page's own requests carry it from here on.
            secure = gate.sessions is not None and gate.sessions.secure(http)
            response.set_cookie(PAGE_COOKIE, token, httponly=True, samesite="Strict", secure=secure)
        return response

    return _problems(check)


async def _page(http: web.Request) -> web.Response:
    name = PAGE_FILES.get(http.match_info.get("file", ""))
    if name is None:
        raise Problem(404, "There is nothing here.")
    body = (files("gateway.web") / "page" / name).read_bytes()
    kind = CONTENT_TYPES[name.rpartition(".")[2]]
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=SECURITY_HEADERS)


def readiness(gateway: Gateway) -> dict[str, object]:
    """Ready: the doors are open, some worker is routable, and keys can be checked. The rest says how well."""
    workers = {worker.id: worker.health.health.value for worker in gateway.fleet}
    routable = any(worker.health.routable for worker in gateway.fleet)
    database = gateway.records.directory.state if gateway.records.directory is not None else "none"
    return {
        "ready": gateway.drain_state.ready
        and (routable or not workers)
        and database not in ("not loaded", "stale"),
        "draining": not gateway.drain_state.ready,
        "workers": workers,
        "redis": "away" if gateway.quotas.store.away else "shared",
        "database": database,
        "token_issuers": _worst(issuer.state for issuer in gateway.every_issuer),
        "index": "following" if gateway.index.reader.up else "standing still",
        "failing_loops": [name for name, state in gateway.supervisor.loops.items() if state.failing],
    }


def _worst(states: Iterable[str]) -> str:
    """One word for all: `none` where there is none."""
    return max(states, key=ISSUER_STATES.index, default="none")


def shown(gateway: Gateway) -> dict[str, object]:
    """Everything on the page but the queues."""
    overview, reservations = gateway.overview, gateway.services.reservations
    stats = reservations.index.stats()
    return {
        "version": gateway.version,
        "policy": reservations.router.policy_name,
        **readiness(gateway),
        "all": overview.shown(overview.all),
        "workers": [
            {**_worker(worker), **overview.shown(overview.workers[worker.id])} for worker in gateway.fleet
        ],
        "tenants": [
            {"id": tenant, **overview.shown(tally)} for tenant, tally in sorted(overview.tenants.items())
        ],
        "waiting": {model: len(room) for model, room in reservations.rooms().items()},
        "prefixes": {"nodes": stats.nodes, "blocks": stats.blocks, "predictions": stats.predictions},
        "leases": len(reservations.leases),
    }


def _worker(worker: Worker) -> dict[str, object]:
    return {
        "id": worker.id,
        "kind": worker.kind,
        "health": worker.health.health.value,
        "models": sorted(worker.models),
        "streams": worker.load.streams,
        "tokens_queued": worker.load.tokens_queued,
        "kv_tokens": worker.load.kv_tokens,
        "kv_tokens_max": worker.report.kv_tokens_max,
        "prefill_tokens_per_second": 1000 / worker.speed.ms_per_token,
        "failures": worker.failures,
    }


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(value), content_type="application/json", headers=SECURITY_HEADERS
    )


def admin_failure(error: GatewayError, http: web.BaseRequest | None = None) -> web.Response:
    """A failure outside of every handler, as a problem."""
    path = http.path if http is not None else None
    return Problem(error.status, error.message, error.headers()).response(path)
