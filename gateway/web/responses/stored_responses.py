"""Responses that are kept: retrieve, delete, cancel, and the input that one had. Each tenant sees its own."""

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
from gateway.web.responses import items as conversation
from gateway.web.stored.background_responses import BackgroundResponses
from gateway.web.stored.json_handlers import AuthenticateTenant, json_handler
from gateway.web.stored.list_parameters import requested_page

ITEMS_MAX = 100
ITEMS = 20

_LIST = msgspec.json.Decoder(list[dict[str, Any]])


class StoredResponseHandlers:
    """`store`: None keeps nothing. `idle_seconds_max`: longest that a client may not read."""

    def __init__(
        self,
        store: ResponseStore | None,
        runs: BackgroundResponses | None,
        tenant_of: AuthenticateTenant,
        *,
        idle_seconds_max: float,
    ) -> None:
        self._store = store
        self._runs = runs
        self._idle_seconds_max = idle_seconds_max
        self._tenant_of = tenant_of

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path below the prefix, handler."""
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
        if http.query.get("stream", "false").lower() != "true":
            return await json_handler(self._whole, ResponsesUnavailable)(http)
        try:
            found, after = await self._found(http), _after(http)
            if self._runs is None or not msgspec.json.decode(found.response).get("background"):
                raise BadRequest("Only a response in the background is streamed again.", param="stream")
        except GatewayError as err:
            return error_response(err, http)
        except DatabaseDown:
            return error_response(ResponsesUnavailable(), http)
        return await shown(http, self._runs, found, after=after, idle_seconds=self._idle_seconds_max)

    async def _whole(self, http: web.Request) -> bytes:
        return (await self._found(http)).response

    async def delete(self, http: web.Request) -> bytes:
        found = await self._found(http)
        assert self._store is not None
        await self._store.delete(found.tenant, found.id)
        return msgspec.json.encode({"id": found.id, "object": "response", "deleted": True})

    async def cancel(self, http: web.Request) -> bytes:
        """One that is not in the background is cancelled by hanging up. One that has ended stays as it is."""
        found = await self._found(http)
        if self._runs is None or not msgspec.json.decode(found.response).get("background"):
            raise BadRequest("Only a response in the background can be cancelled.", param="response_id")
        if found.running:
            cancelled = await self._runs.store.cancel(found)
            self._runs.look(found.id)
            found = cancelled or await self._found(http)
        return found.response

    async def input_items(self, http: web.Request) -> bytes:
        """The newest first, unless asked otherwise; `after` names the last item that is known already."""
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
                "data": [conversation.shown(item) for item in page],
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > len(page),
            }
        )

    async def _found(self, http: web.Request) -> StoredResponse:
        tenant, identity = await self._tenant_of(http), http.match_info["response"]
        found = await self._store.get(tenant.id, identity) if self._store is not None else None
        if found is None:
            raise NotFound(f"The response {identity[:100]!r} does not exist.")
        if found.running and self._runs is not None:
            return await self._runs.store.looked_after(found)
        return found


async def shown(
    http: web.Request, runs: BackgroundResponses, stored: StoredResponse, *, after: int, idle_seconds: float
) -> web.StreamResponse:
    """The stream of a response in the background, from the event after that number."""
    headers = {"server": SERVER, "x-request-id": new_request_id(), **STREAM_HEADERS}
    answer = web.StreamResponse(headers=headers)
    answer.content_type = "text/event-stream"
    await answer.prepare(http)
    try:
        async for events in runs.follow(stored, after):
            async with asyncio.timeout(idle_seconds):
                await answer.write(events)
        await answer.write_eof()
    except TimeoutError:
        # As if it had hung up.
        if http.transport is not None:
            http.transport.abort()
    except (ConnectionResetError, DatabaseDown):
        pass  # Whoever still reads asks again, from where it was.
    return answer


def _after(http: web.Request) -> int:
    """`starting_after`: the number of the last event that is known already. Raises BadRequest."""
    said = http.query.get("starting_after")
    if said is None:
        return -1
    if not (said.isdecimal() and said.isascii() and len(said) < 10):
        raise BadRequest("starting_after must be the number of an event.", param="starting_after")
    return int(said)
