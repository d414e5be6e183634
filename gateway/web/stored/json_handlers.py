"""Handlers that answer with JSON, and with a well-formed error when a store cannot be reached."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.database.database import DatabaseDown
from gateway.domain.errors import GatewayError
from gateway.domain.tenant import Tenant
from gateway.files.content_store import ContentDown
from gateway.web.error_response import error_response, identity_headers
from gateway.web.middleware.error_middleware import Handler

AuthenticateTenant = Callable[[web.Request], Awaitable[Tenant]]
"""Returns the tenant of a request's API key. Raises what Authentication.authenticate raises."""


def json_handler(
    work: Callable[[web.Request], Awaitable[bytes]], unavailable: Callable[[], GatewayError]
) -> Handler:
    """Return a handler that answers with the JSON that `work` returns.

    Args:
        work: Returns the body of the answer. Raises GatewayError.
        unavailable: Returns the error for a database or file storage that cannot be reached.
    """

    async def handle(http: web.Request) -> web.Response:
        try:
            body = await work(http)
        except GatewayError as err:
            return error_response(err, http)
        except (DatabaseDown, ContentDown):
            return error_response(unavailable(), http)
        return web.Response(body=body, content_type="application/json", headers=identity_headers(http))

    return handle
