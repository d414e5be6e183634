"""Query parameters of lists of stored objects: `limit`, `after` and `order`."""

from aiohttp import web

from gateway.database.pagination import PageRequest
from gateway.domain.errors import BadRequest
from gateway.domain.whole_number import whole_number


def requested_page(http: web.Request, *, limit: int, limit_max: int) -> PageRequest:
    """Return the page that the query parameters request.

    Args:
        http: The request of the list.
        limit: The limit if the request names none.
        limit_max: Largest limit that a request may name.

    Raises:
        BadRequest: A parameter is not valid.
    """
    asked, order = requested_limit(http, limit=limit, limit_max=limit_max), http.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc.", param="order")
    return PageRequest(limit=asked, after=http.query.get("after"), newest_first=order == "desc")


def requested_limit(http: web.Request, *, limit: int, limit_max: int) -> int:
    """Return the `limit` parameter of a list, or the default. Raises BadRequest."""
    asked = whole_number(http.query.get("limit", str(limit)), 1, limit_max)
    if asked is None:
        raise BadRequest(f"limit must be between 1 and {limit_max}.", param="limit")
    return asked
