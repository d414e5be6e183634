"""The operators' listener: health, metrics, the page, and the API (gateway/adminapi), which has a gate of its own.

/health/* and /metrics answer everybody who can connect. /ui and /admin/v1/overview need the token if there is
one; without one they answer only while the listener is on a loopback address, and then the host must be named
as loopback too.
"""

import hmac
from contextlib import aclosing
from importlib.resources import files

import orjson
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from gateway.adminapi.records import records_of
from gateway.adminapi.routes import mount
from gateway.app import Gateway
from gateway.dispatch.fleet import Worker
from gateway.errors import GatewayError
from gateway.settings.listeners import is_loopback
from gateway.telemetry.exposition import exposition
from gateway.web.boundary import Handler, boundary

COOKIE = "radixgate_admin"
PAGE_FILES = {"": "index.html", "page.js": "page.js", "page.css": "page.css"}
CONTENT_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "server": "radixgate",
}


def admin_app(gateway: Gateway) -> web.Application:
    """The application behind `admin`."""
    admin = gateway.settings.admin
    token = admin.token.reveal() if admin.token is not None else None

    def guarded(handle: Handler) -> Handler:
        async def check(http: web.Request) -> web.StreamResponse:
            if token is None and not is_loopback(admin.host):
                return _problem(
                    403, "Set admin.token to use this address on a listener that others can reach."
                )
            if token is not None and not _presents(http, token):
                return _problem(
                    401, "This address needs the admin token, as `Authorization: Bearer` or ?token=."
                )
            response = await handle(http)
            if token is not None and http.query.get("token"):
                # The page's own requests carry it from here on.
                response.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
            return response

        return check

    async def live(http: web.Request) -> web.Response:
        return _json({"live": True})

    async def ready(http: web.Request) -> web.Response:
        state = readiness(gateway)
        return _json(state, status=200 if state["ready"] else 503)

    async def metrics(http: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(http.headers.get("Accept", ""))
        response, whole = web.StreamResponse(headers={"content-type": content_type}), False
        await response.prepare(http)
        try:
            async with aclosing(exposition(gateway.registry, encode)) as slices:
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
        return _json(shown(gateway))

    async def page(http: web.Request) -> web.Response:
        name = PAGE_FILES.get(http.match_info.get("file", ""))
        if name is None:
            return _problem(404, "There is nothing here.")
        body = (files("gateway.web") / "page" / name).read_bytes()
        kind = CONTENT_TYPES[name.rpartition(".")[2]]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=SECURITY_HEADERS)

    async def no_database(http: web.Request) -> web.Response:
        return _problem(404, "Tenants and keys come from the settings file only (database.url: none).")

    async def to_page(http: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/ui/")

    local_names_only = token is None and is_loopback(admin.host)
    app = web.Application(middlewares=[boundary(admin_failure, local_names_only=lambda: local_names_only)])
    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/admin/v1/overview", guarded(overview))
    records = records_of(gateway)
    if records is not None:
        mount(app, records)
    else:
        app.router.add_route("*", "/admin/v1/{anything:.*}", no_database)
    app.router.add_get("/ui/{file:.*}", guarded(page))
    app.router.add_get("/ui", to_page)
    app.router.add_get("/", to_page)
    return app


def readiness(gateway: Gateway) -> dict[str, object]:
    """Ready: the doors are open, some worker is routable, and keys can be checked. The rest says how well."""
    workers = {worker.id: worker.health.health.value for worker in gateway.fleet}
    routable = any(worker.health.routable for worker in gateway.fleet)
    database = gateway.records.directory.state if gateway.records.directory is not None else "none"
    return {
        "ready": gateway.doors.ready
        and (routable or not workers)
        and database not in ("not loaded", "stale"),
        "draining": not gateway.doors.ready,
        "workers": workers,
        "redis": "away" if gateway.quotas.store.away else "shared",
        "database": database,
        "index": "following" if gateway.index.reader.up else "standing still",
        "failing_loops": [name for name, state in gateway.supervisor.loops.items() if state.failing],
    }


def shown(gateway: Gateway) -> dict[str, object]:
    """Everything on the page."""
    overview, reservations = gateway.overview, gateway.services.reservations
    stats = reservations.index.stats()
    return {
        "version": gateway.version,
        "policy": gateway.settings.routing.policy,
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


def _presents(http: web.Request, token: str) -> bool:
    bearer = http.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    given = bearer or http.query.get("token") or http.cookies.get(COOKIE) or ""
    # Any bytes may come in a header, also such as are no text.
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(value), content_type="application/json", headers=SECURITY_HEADERS
    )


def admin_failure(error: GatewayError) -> web.Response:
    problem = _problem(error.status, error.message)
    problem.headers.update(error.headers())
    return problem


def _problem(status: int, detail: str) -> web.Response:
    """An RFC 9457 problem."""
    detail = detail.encode("utf-8", "replace").decode()
    return web.Response(
        status=status,
        body=orjson.dumps({"type": "about:blank", "status": status, "detail": detail}),
        content_type="application/problem+json",
        headers=SECURITY_HEADERS,
    )
