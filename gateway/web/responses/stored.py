"""Responses that are kept: retrieve, delete, cancel, and the input that one had. Each tenant sees its own."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from gateway.database.database import DatabaseDown
from gateway.database.response_store import ResponseStore, StoredResponse
from gateway.errors import BadRequest, GatewayError, NotFound, ResponsesUnavailable
from gateway.tenants.tenant import Tenant
from gateway.web.boundary import Handler
from gateway.web.exchange import SERVER, new_request_id
from gateway.web.failure import failure

ITEMS_MAX = 100
ITEMS = 20

_LIST = msgspec.json.Decoder(list[dict[str, Any]])


class StoredResponses:
    """`tenant_of`: whose key a request has; raises what Entrance.admit raises. `store`: None keeps nothing."""

    def __init__(
        self, store: ResponseStore | None, tenant_of: Callable[[web.Request], Awaitable[Tenant]]
    ) -> None:
        self._store = store
        self._tenant_of = tenant_of

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Method, path below the prefix, handler."""
        one = "responses/{response}"
        return [
            ("GET", one, self._answering(self.show)),
            ("DELETE", one, self._answering(self.delete)),
            ("POST", f"{one}/cancel", self._answering(self.cancel)),
            ("GET", f"{one}/input_items", self._answering(self.input_items)),
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
        limit, order = http.query.get("limit", str(ITEMS)), http.query.get("order", "desc")
        if not (limit.isdecimal() and limit.isascii() and 1 <= int(limit[:5]) <= ITEMS_MAX):
            raise BadRequest(f"limit must be between 1 and {ITEMS_MAX}.", param="limit")
        if order not in ("asc", "desc"):
            raise BadRequest("order must be asc or desc.", param="order")
        stored = await self._found(http)
        items = _LIST.decode(stored.context)[stored.own_from :]
        if order == "desc":
            items.reverse()
        after = http.query.get("after")
        if after is not None:
            places = [at for at, item in enumerate(items) if item["id"] == after]
            if not places:
                raise BadRequest(f"There is no item {after[:100]!r}.", param="after")
            items = items[places[0] + 1 :]
        page = items[: int(limit)]
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

    def _answering(self, work: Callable[[web.Request], Any]) -> Handler:
        async def handle(http: web.Request) -> web.Response:
            try:
                body = await work(http)
            except GatewayError as err:
                return failure(err, http)
            except DatabaseDown:
                return failure(ResponsesUnavailable(), http)
            headers = {"server": SERVER, "x-request-id": new_request_id()}
            return web.Response(body=body, content_type="application/json", headers=headers)

        return handle
