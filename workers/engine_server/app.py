"""The worker's HTTP application: every URL and its handler."""

from aiohttp import web

from workers.engine_server import control, generation
from workers.engine_server.api_key import requires_key
from workers.engine_server.embeddings import embeddings
from workers.engine_server.engine_worker import WORKER, EngineWorker
from workers.engine_server.errors import errors_as_json
from workers.engine_server.options import BODY_BYTES_MAX


def build_app(worker: EngineWorker, api_key: str | None = None) -> web.Application:
    """Return the HTTP application of one worker; `api_key` is the key that requests must have."""
    app = web.Application(middlewares=[errors_as_json], client_max_size=BODY_BYTES_MAX)
    if api_key is not None:
        app.middlewares.append(requires_key(api_key))
    app[WORKER] = worker
    app.add_routes(
        [
            web.post("/v1/chat/completions", generation.chat_completions),
            web.post("/v1/completions", generation.completions),
            web.post("/v1/embeddings", embeddings),
            web.get("/v1/models", control.models),
            web.get("/v1/models/{model:.+}", control.model),
            web.get("/health", control.health),
            web.get("/ready", control.health),
            web.get("/server_info", control.server_info),
            web.get("/v1/loads", control.loads),
            web.get("/metrics", control.metrics),
            web.post("/tokenize", control.tokenize),
            web.post("/detokenize", control.detokenize),
            web.post("/abort_request", control.abort_request),
            web.post("/flush_cache", control.flush_cache),
        ]
    )
    return app
