"""The refusal of requests that a web page of another site makes a browser send to a listener of this machine.

A web page can make a browser send requests to any address that the page's host name resolves to, even 127.0.0.1
(DNS rebinding). A loopback listener that requires no key therefore answers only requests with a Host header that
names loopback. It also refuses requests of foreign pages that change or cost something, since browsers send some of
these without a preflight.
"""

from collections.abc import Callable, Collection

from aiohttp import web

from gateway.domain.errors import GatewayError, HostNotAllowed, OriginNotAllowed
from gateway.settings.listeners import names_loopback

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def refusal_of_page(
    request: web.BaseRequest,
    local_names_only: Callable[[], bool],
    any_host: Collection[str],
    page_allowed: Callable[[web.BaseRequest], bool],
) -> GatewayError | None:
    """Return the error with which a request is refused, or None. The arguments are those of `error_middleware`."""
    if (
        not names_loopback(request.headers.get("Host", ""))
        and request.path not in any_host
        and local_names_only()
    ):
        return HostNotAllowed()
    if (
        ("Origin" in request.headers or "Sec-Fetch-Site" in request.headers)
        and request.method not in SAFE_METHODS
        and local_names_only()
        and not _is_own_page(request)
        and not page_allowed(request)
    ):
        return OriginNotAllowed()
    return None


def _is_own_page(request: web.BaseRequest) -> bool:
    """Return whether a request comes from a page of this listener, or from none."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    return request.headers["Origin"].partition("://")[2].lower() == request.headers.get("Host", "").lower()
