"""Answers malformed HTTP in the listener's error format, without quoting what was received.

aiohttp would answer in plain text and quote the line that it did not understand, which may contain a key.
"""

from collections.abc import Callable

from aiohttp import web

from gateway.domain.errors import BadRequest, GatewayError, InternalError
from gateway.web.request_identity import new_request_id

ErrorAnswer = Callable[[GatewayError, web.BaseRequest | None], web.Response]
"""Return the answer for an error; the request is None where none could be parsed."""


def with_error_answers(error_answer: ErrorAnswer) -> Callable[[web.RequestHandler], web.RequestHandler]:
    """Return a function that makes a connection's protocol answer errors in the given shape."""

    class Protocol(web.RequestHandler):
        __slots__ = ()

        def handle_error(
            self,
            request: web.BaseRequest,
            status: int = 500,
            exc: BaseException | None = None,
            message: str | None = None,
        ) -> web.StreamResponse:
            if request.writer.output_size:
                return super().handle_error(request, status, exc, message)
            if status < 500:
                answer = error_answer(BadRequest("The request is not valid HTTP."), None)
            else:
                request_id = new_request_id()
                self.log_exception("a request failed in the HTTP server (%s)", request_id, exc_info=exc)
                answer = error_answer(InternalError(request_id), None)
            answer.force_close()
            return answer

    def convert(made: web.RequestHandler) -> web.RequestHandler:
        # The server makes its own class and accepts no other; both classes have the same slots.
        made.__class__ = Protocol
        return made

    return convert
