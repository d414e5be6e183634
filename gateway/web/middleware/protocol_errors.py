"""What is no HTTP gets an answer in the listener's own shape, which quotes nothing of it.

aiohttp would answer in plain text, with the line that it did not understand: it may have held a key.
"""

from collections.abc import Callable

from aiohttp import web

from gateway.domain.errors import BadRequest, GatewayError, InternalError
from gateway.web.request_identity import new_request_id

Failure = Callable[[GatewayError, web.BaseRequest | None], web.Response]


def speaking(failure: Failure) -> Callable[[web.RequestHandler], web.RequestHandler]:
    """Teaches a connection's protocol to fail in this shape."""

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
                answer = failure(BadRequest("This is not HTTP as it is spoken here."), None)
            else:
                request_id = new_request_id()
                self.log_exception("a request failed in the HTTP server (%s)", request_id, exc_info=exc)
                answer = failure(InternalError(request_id), None)
            answer.force_close()
            return answer

    def taught(made: web.RequestHandler) -> web.RequestHandler:
        # The server makes its own kind and takes no other; both have the same slots.
        made.__class__ = Protocol
        return made

    return taught
