"""Handlers of the calling tenant's stored responses: retrieve, delete, cancel, list the input items."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from gateway.database.database import DatabaseDown
from gateway.database.response_store import ResponseStore, StoredResponse
from gateway.domain.errors import BadRequest, GatewayError, NotFound, ResponsesUnavailable
from gateway.web.error_response import error_response
from gateway.web.exchange import STREAM_HEADERS
from gateway.web.middleware.error_middleware import Handler
from gateway.web.request_identity import SERVER, new_request_id
from gateway.web.responses.items import item_object
from gateway.web.stored.background_responses import BackgroundResponses
from gateway.web.stored.json_handlers import AuthenticateTenant, json_handler
from gateway.web.stored.list_parameters import requested_page

ITEMS_MAX = 100
"""The largest number of items on a page."""
ITEMS = 20
"""The default number of items on a page."""

_LIST = msgspec.json.Decoder(list[dict[str, Any]])


class StoredResponseHandlers:
    """The HTTP handlers of stored responses."""

    def __init__(
        self,
        store: ResponseStore | None,
        background_responses: BackgroundResponses | None,
        authenticate: AuthenticateTenant,
        *,
        unread_seconds_max: float,
    ) -> None:
        """Create the handlers.

        Args:
            store: The stored responses; None without a database.
            background_responses: The responses under way in this gateway; None without a database.
            authenticate: Returns the tenant of a request.
            unread_seconds_max: A client that reads nothing of a stream for so long is treated as gone.
        """
        self._store = store
        self._background_responses = background_responses
        self._unread_seconds_max = unread_seconds_max
        self._authenticate = authenticate

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return the routes: method, path below the prefix, handler."""
        one = "responses/{response}"

        def answer(work: Callable[[web.Request], Awaitable[bytes]]) -> Handler:
            return json_handler(work, ResponsesUnavailable)

        return [
            ("GET", one, self.show),
            ("DELETE", one, answer(self.delete)),
            ("POST", f"{one}/cancel", answer(self.cancel)),
            ("GET", f"{one}/input_items", answer(self.input_items)),
        ]

    async def show(self, http: web.Request) -> web.StreamResponse:
        """Answer with a response, or with `?stream=true` with the stream of a background response."""
        if http.query.get("stream", "false").lower() != "true":
            return await json_handler(self._response_body, ResponsesUnavailable)(http)
        try:
            found, after = await self._found(http), _after(http)
            if self._background_responses is None or not msgspec.json.decode(found.response).get(
                "background"
            ):
                raise BadRequest("Only a background response can be streamed again.", param="stream")
        except GatewayError as err:
            return error_response(err, http)
        except DatabaseDown:
            return error_response(ResponsesUnavailable(), http)
        return await stream_background_response(
            http, self._background_responses, found, after=after, unread_seconds_max=self._unread_seconds_max
        )

    async def _response_body(self, http: web.Request) -> bytes:
        return (await self._found(http)).response

    async def delete(self, http: web.Request) -> bytes:
        """Delete a response."""
        found = await self._found(http)
        assert self._store is not None
        await self._store.delete(found.tenant, found.id)
        return msgspec.json.encode({"id": found.id, "object": "response", "deleted": True})

    async def cancel(self, http: web.Request) -> bytes:
        """Cancel a background response; a response that has ended stays unchanged.

        A response that is not in the background is cancelled by closing its connection.
        """
        found = await self._found(http)
        if self._background_responses is None or not msgspec.json.decode(found.response).get("background"):
            raise BadRequest("Only a background response can be cancelled.", param="response_id")
        if found.running:
            cancelled = await self._background_responses.store.cancel(found)
            self._background_responses.abort(found.id)
            found = cancelled or await self._found(http)
        return found.response

    async def input_items(self, http: web.Request) -> bytes:
        """List the items of a response's own input, newest first unless asked otherwise.

        The `after` parameter names the last item that the client has already.
        """
        asked = requested_page(http, limit=ITEMS, limit_max=ITEMS_MAX)
        stored = await self._found(http)
        items = _LIST.decode(stored.context)[stored.own_from :]
        if asked.newest_first:
            items.reverse()
        if asked.after is not None:
            places = [at for at, item in enumerate(items) if item["id"] == asked.after]
            if not places:
                raise BadRequest(f"There is no item {asked.after[:100]!r}.", param="after")
            items = items[places[0] + 1 :]
        page = items[: asked.limit]
        return msgspec.json.encode(
            {
                "object": "list",
                "data": [item_object(item) for item in page],
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > len(page),
            }
        )

    async def _found(self, http: web.Request) -> StoredResponse:
        tenant, identity = await self._authenticate(http), http.match_info["response"]
        found = await self._store.get(tenant.id, identity) if self._store is not None else None
        if found is None:
            raise NotFound(f"The response {identity[:100]!r} does not exist.")
        if found.running and self._background_responses is not None:
            return await self._background_responses.store.fail_if_abandoned(found)
        return found


async def stream_background_response(
    http: web.Request,
    background_responses: BackgroundResponses,
    stored: StoredResponse,
    *,
    after: int,
    unread_seconds_max: float,
) -> web.StreamResponse:
    """Answer with the stream of a background response.

    Args:
        http: The request.
        background_responses: The responses under way in this gateway.
        stored: The response to stream.
        after: Number of the last event that the client has; -1 for none.
        unread_seconds_max: A client that reads nothing for so long is treated as gone.
    """
    headers = {"server": SERVER, "x-request-id": new_request_id(), **STREAM_HEADERS}
    answer = web.StreamResponse(headers=headers)
    answer.content_type = "text/event-stream"
    await answer.prepare(http)
    try:
        async for events in background_responses.follow(stored, after):
            async with asyncio.timeout(unread_seconds_max):
                await answer.write(events)
        await answer.write_eof()
    except TimeoutError:
        # As if the client had hung up.
        if http.transport is not None:
            http.transport.abort()
    except (ConnectionResetError, DatabaseDown):
        pass  # A client that still reads calls again, from its last event on.
    return answer


def _after(http: web.Request) -> int:
    """Return `starting_after`: the number of the last event that the client has, or -1. Raises BadRequest."""
    text = http.query.get("starting_after")
    if text is None:
        return -1
    if not (text.isdecimal() and text.isascii() and len(text) < 10):
        raise BadRequest("starting_after must be the number of an event.", param="starting_after")
    return int(text)
