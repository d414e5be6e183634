"""Error responses of the gateway, in the shape of the API that was called: OpenAI's or Anthropic's."""

import msgspec
from aiohttp import web

from gateway.domain.errors import ContextExceeded, GatewayError, PromptTooLong
from gateway.web.request_identity import SERVER, new_request_id

ANTHROPIC_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""The `type` of an Anthropic error by HTTP status. Other statuses are `invalid_request_error` or `api_error`."""

ANTHROPIC_FIELD_NAMES = {"stop": "stop_sequences"}
"""Field of the chat completion request that a message becomes -> the field's name in the Messages API."""


def error_response(error: GatewayError, http: web.BaseRequest | None = None) -> web.Response:
    """Return an error as an HTTP response, for a failure outside the request pipeline.

    The body has OpenAI's shape, unless the client is known to use Anthropic's API.
    """
    request_id = new_request_id()
    headers = {"server": SERVER, "x-request-id": request_id, **error.headers()}
    body = error.body()
    if http is not None and speaks_anthropic(http):
        headers["request-id"] = request_id
        body = anthropic_error_body(error, request_id)
    return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)


def anthropic_error_body(error: GatewayError, request_id: str) -> bytes:
    """Return an error as JSON in Anthropic's shape."""
    kind = ANTHROPIC_ERROR_TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
    text = error.message_and_param(ANTHROPIC_FIELD_NAMES)[0].encode("utf-8", "replace").decode()
    # Anthropic's clients recognise these words, and then shorten the conversation or the requested answer.
    if isinstance(error, PromptTooLong):
        text = f"prompt is too long: {error.least}{error.tokens} tokens > {error.context_length} maximum"
    elif isinstance(error, ContextExceeded):
        text = _context_exceeded_text(error, text)
    return msgspec.json.encode(
        {"type": "error", "error": {"type": kind, "message": text}, "request_id": request_id}
    )


def _context_exceeded_text(error: ContextExceeded, text: str) -> str:
    """Return Anthropic's words for a worker's refusal, with the worker's own `text` if it gave no numbers."""
    prompt, answer, context = error.prompt_tokens, error.output_tokens, error.context_length
    if prompt is None or context is None:
        return f"prompt is too long: {text}"
    if prompt < context and answer is not None:
        return (
            f"input length and `max_tokens` exceed context limit: {prompt} + {answer} > {context}, "
            "decrease input length or `max_tokens` and try again"
        )
    return f"prompt is too long: {prompt} tokens > {context} maximum"


def identity_headers(http: web.BaseRequest) -> dict[str, str]:
    """Return the headers of an answer made by the gateway alone: its server name and a new request id."""
    request_id = new_request_id()
    also = {"request-id": request_id} if speaks_anthropic(http) else {}
    return {"server": SERVER, "x-request-id": request_id, **also}


def speaks_anthropic(http: web.BaseRequest) -> bool:
    """Return whether a request comes from a client of Anthropic's API.

    Anthropic's SDKs send the version of their API with every request.
    """
    return "anthropic-version" in http.headers or http.path.startswith(("/v1/messages", "/messages"))
