"""The errors that a client of the worker can receive, in OpenAI's shape.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

| what happened            | status | code                               |
|--------------------------|--------|------------------------------------|
| bad input                | 400    | invalid_request, or a narrower one |
| no API key, another one   | 401    | invalid_api_key                    |
| too long for the context | 400    | context_length_exceeded            |
| unknown model            | 404    | model_not_found                    |
| unknown URL, method      | 404/405| not_found, method_not_allowed      |
| body too large           | 413    | payload_too_large                  |
| queue full               | 503    | overloaded                         |
| waited past its deadline | 503    | deadline_exceeded                  |
| shutting down            | 503    | shutting_down                      |
| a step failed            | 503    | step_failed                        |
| engine failed            | 503    | engine_failed                      |
| a bug                    | 500    | internal_error                     |
"""

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec
from aiohttp import web

from workers.chat_template import TemplateFailed
from workers.engine.errors import EngineFailed, QueueFull, RequestRefused, StepFailed

_log = logging.getLogger("radixgate.worker")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """A request that ends in an HTTP error; the message is safe for clients."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def body(self) -> bytes:
        """Return OpenAI's error object, with all four keys."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> web.Response:
        """Return the whole HTTP response."""
        # A queue moves within a second; without this header an SDK may wait much longer.
        headers = {"Retry-After": "1"} if self.status == 503 else None
        return web.Response(
            status=self.status, body=self.body(), content_type="application/json", headers=headers
        )


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_request") -> ApiError:
    """Return a 400 error; `param` names the field that caused it."""
    return ApiError(400, message, code=code, param=param)


def translate(error: Exception) -> ApiError:
    """Return the error that a client receives for an exception; the cause of a bug stays in the log."""
    match error:
        case ApiError():
            return error
        case RequestRefused():
            return bad_request(str(error), param=error.param, code=error.code or "invalid_request")
        case TemplateFailed():
            return bad_request(str(error), param="messages")
        case QueueFull():
            return ApiError(503, f"The worker is overloaded: {error}.", code="overloaded")
        case StepFailed():
            return ApiError(503, f"Please send the request again: {error}.", code="step_failed")
        case EngineFailed():
            return ApiError(503, "The engine has failed and answers no more.", code="engine_failed")
        case web.HTTPException():
            return _translate_http(error)
    _log.error("a request failed unexpectedly", exc_info=error)
    return ApiError(500, "An internal error occurred.", code="internal_error")


def _translate_http(error: web.HTTPException) -> ApiError:
    phrase = HTTPStatus(error.status).phrase
    codes = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}
    return ApiError(
        error.status, f"{phrase}.", code=codes.get(error.status, phrase.lower().replace(" ", "_"))
    )


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every failure before the first byte into an error object, never a traceback."""
    try:
        return await handler(request)
    except ConnectionResetError:
        # The client disconnected during a write: this response goes nowhere. Raised, the error would fill the log.
        return web.Response()
    except web.HTTPNotFound:
        message = f"This worker has nothing at {request.method} {request.path[:200]}."
        return ApiError(404, message, code="not_found").response()
    except Exception as err:  # noqa: BLE001 - the one place where every exception is translated
        return translate(err).response()
