"""Responses that are kept: retrieve, delete, cancel, and the input that one had. Each tenant sees its own."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from gateway.database.response_store import ResponseStore, StoredResponse
from gateway.errors import BadRequest, NotFound, ResponsesUnavailable
from gateway.web.boundary import Handler
from gateway.web.kept import TenantOf, answering, page_of

ITEMS_MAX = 100
ITEMS = 20

_LIST = msgspec.json.Decoder(list[dict[str, Any]])


class StoredResponses:
    """`store`: None keeps nothing."""

    def __init__(self, store: ResponseStore | None, tenant_of: TenantOf) -> None:
        self._store = store
        self._tenant_of = tenant_of

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path below the prefix, handler."""
        one = "responses/{response}"

        def answer(work: Callable[[web.Request], Awaitable[bytes]]) -> Handler:
            return answering(work, ResponsesUnavailable)

        return [
            ("GET", one, answer(self.show)),
            ("DELETE", one, answer(self.delete)),
            ("POST", f"{one}/cancel", answer(self.cancel)),
            ("GET", f"{one}/input_items", answer(self.input_items)),
        ]

    async def show(self, http: web.Request) -> bytes:
        if http.query.get("stream", "false") == "true":
            raise BadRequest("A stored response is not streamed again.", param="stream")
        return (await self._found(http)).response

    async def delete(self, http: web.Request) -> bytes:
        found = await self._found(http)
        assert self._store is not None
        await self._store.delete(found.tenant, found.id)
        return msgspec.json.encode({"id": found.id, "object": "response", "deleted": True})

    async def cancel(self, http: web.Request) -> bytes:
        """What is stored has ended: a response that is not in the background is cancelled by hanging up."""
        await self._found(http)
        raise BadRequest("Only a response in the background can be cancelled.", param="response_id")

    async def input_items(self, http: web.Request) -> bytes:
        """The newest first, unless asked otherwise; `after` names the last item that is known already."""
        asked = page_of(http, limit=ITEMS, limit_max=ITEMS_MAX)
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
                "data": page,
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
        return found
