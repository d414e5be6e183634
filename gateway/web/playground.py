"""The playground of the console: an operator sends a chat request with a tenant's API key.

The request is handled like one on the tenants' listener: it is authenticated, limited, charged and recorded as the
key's own.
"""

from functools import partial

from aiohttp import web

from gateway.app import Gateway
from gateway.domain.request import Surface
from gateway.domain.request_headers import credential_header
from gateway.pipeline import serve
from gateway.settings.types import Address, address_of
from gateway.web.dialect_factory import dialect_factory
from gateway.web.exchange import HttpExchange
from gateway.web.exchange_handler import exchange_handler
from gateway.web.middleware.error_middleware import Handler

KEY_HEADER = "x-radixgate-key"
"""The header with the tenant's key; `Authorization` has the operator's token."""


class PlaygroundExchange(HttpExchange):
    """The exchange of an operator who sends a request with a tenant's key."""

    @property
    def api_key(self) -> str | None:
        """The tenant's API key; None if there is none. Raises Unauthenticated for different ones."""
        return credential_header(self._http.headers, KEY_HEADER)


def playground(gateway: Gateway) -> Handler:
    """Return the handler of chat requests with a tenant's key."""
    services, bounds = gateway.services, gateway.settings.requests
    new_exchange = partial(
        PlaygroundExchange,
        dialect=dialect_factory(Surface.CHAT, gateway.records.responses),
        find_address=_address,
        memory=gateway.memory,
        body_bytes_max=bounds.body_bytes_max,
        body_seconds_max=bounds.body_seconds_max,
        unread_seconds_max=services.unread_seconds_max,
        logged=False,
    )
    return exchange_handler(new_exchange, serve, services, gateway.drain_state)


def _address(http: web.Request) -> Address | None:
    return address_of(http.remote or "")
