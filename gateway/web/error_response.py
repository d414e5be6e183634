"""An error outside of the pipeline, in the shape of the API that was called."""

from aiohttp import web

from gateway.domain.errors import GatewayError
from gateway.web.anthropic import answers
from gateway.web.exchange import SERVER, new_request_id


def failure(error: GatewayError, http: web.BaseRequest | None = None) -> web.Response:
    """OpenAI's shape, unless the caller is known to speak Anthropic's."""
    request_id = new_request_id()
    headers = {"server": SERVER, "x-request-id": request_id, **error.headers()}
    body = error.body()
    if http is not None and speaks_anthropic(http):
        headers["request-id"] = request_id
        body = answers.error(error, request_id)
    return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)


def identified(http: web.BaseRequest) -> dict[str, str]:
    """Headers of an answer that comes from the gateway alone, with an id of its own."""
    request_id = new_request_id()
    also = {"request-id": request_id} if speaks_anthropic(http) else {}
    return {"server": SERVER, "x-request-id": request_id, **also}


def speaks_anthropic(http: web.BaseRequest) -> bool:
    """Its SDKs send their API's version with every request."""
    return "anthropic-version" in http.headers or http.path.startswith(("/v1/messages", "/messages"))
