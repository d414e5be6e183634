"""Handlers of the Conversations API: conversations of the calling tenant, their metadata and their items."""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from gateway.database.conversation_store import (
    ConversationFull,
    ConversationNotFound,
    ConversationStore,
    ItemInvalid,
    StoredConversation,
)
from gateway.database.pagination import CursorNotFound
from gateway.database.response_store import BYTES_MAX
from gateway.domain.errors import BadRequest, NotFound, ResponsesUnavailable
from gateway.domain.memory_budget import MemoryBudget, MemoryLease
from gateway.web.bodies.small_body import read_small_body
from gateway.web.bodies.typed_bodies import decode_typed_body
from gateway.web.middleware.error_middleware import Handler
from gateway.web.openai.files import list_body
from gateway.web.responses.continued_conversation import conversation_not_found
from gateway.web.responses.items import REFERENCE, input_items, item_object
from gateway.web.responses.messages import chat_messages
from gateway.web.stored.json_handlers import AuthenticateTenant, json_handler
from gateway.web.stored.list_parameters import requested_page

ADDED_MAX = 20
"""The most items that one request may add, as at OpenAI."""
BODY_BYTES_MAX = 1024**2
MEMORY_PER_BYTE = 8
"""The memory, in bytes, for one byte of a body that is read and decoded."""
ITEMS, ITEMS_MAX = 20, 100
"""The default and the largest number of items on a page."""

Json = dict[str, Any]
Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]


class CreateConversation(msgspec.Struct, frozen=True):
    """The body of POST /v1/conversations."""

    items: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=ADDED_MAX)] | None = None
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, frozen=True):
    """The body of POST /v1/conversations/{conversation}."""

    metadata: Metadata | None = None


class AddItems(msgspec.Struct, frozen=True):
    """The body of POST /v1/conversations/{conversation}/items."""

    items: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=ADDED_MAX)]


_CREATE = msgspec.json.Decoder(CreateConversation)
_UPDATE = msgspec.json.Decoder(UpdateConversation)
_ADD = msgspec.json.Decoder(AddItems)
_Body = TypeVar("_Body")


class ConversationHandlers:
    """The HTTP handlers of conversations."""

    def __init__(
        self,
        store: ConversationStore | None,
        authenticate: AuthenticateTenant,
        *,
        memory: MemoryBudget,
        body_seconds_max: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create the handlers.

        Args:
            store: The stored conversations; None without a database.
            authenticate: Returns the tenant of a request.
            memory: The memory that all requests share.
            body_seconds_max: Time in which a request body has to arrive.
            wall: Unix time in seconds.
        """
        self._stored = store
        self._authenticate = authenticate
        self._memory = memory
        self._body_seconds_max = body_seconds_max
        self._wall = wall

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return the routes: method, path below the prefix, handler."""
        one = "conversations/{conversation}"

        def answer(work: Callable[[web.Request], Awaitable[bytes]]) -> Handler:
            return json_handler(work, ResponsesUnavailable)

        return [
            ("POST", "conversations", answer(self.create)),
            ("GET", one, answer(self.show)),
            ("POST", one, answer(self.update)),
            ("DELETE", one, answer(self.delete)),
            ("POST", f"{one}/items", answer(self.add_items)),
            ("GET", f"{one}/items", answer(self.list_items)),
            ("GET", f"{one}/items/{{item}}", answer(self.show_item)),
            ("DELETE", f"{one}/items/{{item}}", answer(self.delete_item)),
        ]

    @property
    def _store(self) -> ConversationStore:
        if self._stored is None or not self._stored.enabled:
            raise NotFound("This gateway stores no conversations.")
        return self._stored

    async def create(self, http: web.Request) -> bytes:
        """Create a conversation, with items if the request has some."""
        tenant, store = await self._authenticate(http), self._store
        body = await self._body(http, _CREATE)
        conversation = StoredConversation(
            id=f"conv_{secrets.token_hex(16)}",
            tenant=tenant.id,
            created=self._wall(),
            metadata=body.metadata or {},
        )
        items = _items(body.items or [], conversation.id)
        async with _errors(conversation.id):
            await store.create(conversation, items)
        return msgspec.json.encode(conversation_object(conversation))

    async def show(self, http: web.Request) -> bytes:
        """Show a conversation."""
        return msgspec.json.encode(conversation_object(await self._found(http)))

    async def update(self, http: web.Request) -> bytes:
        """Replace the metadata of a conversation."""
        found = await self._found(http)
        body = await self._body(http, _UPDATE)
        async with _errors(found.id):
            await self._store.set_metadata(found.tenant, found.id, body.metadata or {})
        return msgspec.json.encode(conversation_object(found) | {"metadata": body.metadata or {}})

    async def delete(self, http: web.Request) -> bytes:
        """Delete a conversation with its items."""
        found = await self._found(http)
        await self._store.delete(found.tenant, found.id)
        return msgspec.json.encode({"id": found.id, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, http: web.Request) -> bytes:
        """Add items at the end of a conversation."""
        found = await self._found(http)
        items = _items((await self._body(http, _ADD)).items, found.id)
        async with _errors(found.id):
            await self._store.append(found.tenant, found.id, items)
        return list_body([item_object(item) for item in items], more=False)

    async def list_items(self, http: web.Request) -> bytes:
        """List the items of a conversation, newest first unless asked otherwise."""
        page = requested_page(http, limit=ITEMS, limit_max=ITEMS_MAX)
        tenant, identity = await self._authenticate(http), http.match_info["conversation"]
        async with _errors(identity):
            try:
                items, more = await self._store.page(tenant.id, identity, page)
            except CursorNotFound as err:
                raise BadRequest(f"There is no item {(page.after or '')[:100]!r}.", param="after") from err
        return list_body([item_object(item) for item in items], more)

    async def show_item(self, http: web.Request) -> bytes:
        """Show one item of a conversation."""
        tenant, identity = await self._authenticate(http), http.match_info["conversation"]
        async with _errors(identity):
            item = await self._store.item(tenant.id, identity, http.match_info["item"])
        if item is None:
            raise _item_not_found(http)
        return msgspec.json.encode(item_object(item))

    async def delete_item(self, http: web.Request) -> bytes:
        """Delete one item of a conversation, and show the conversation."""
        found = await self._found(http)
        async with _errors(found.id):
            if not await self._store.delete_item(found.tenant, found.id, http.match_info["item"]):
                raise _item_not_found(http)
        return msgspec.json.encode(conversation_object(found))

    async def _found(self, http: web.Request) -> StoredConversation:
        tenant, identity = await self._authenticate(http), http.match_info["conversation"]
        found = await self._store.get(tenant.id, identity)
        if found is None:
            raise conversation_not_found(identity)
        return found

    async def _body(self, http: web.Request, decoder: "msgspec.json.Decoder[_Body]") -> _Body:
        memory = MemoryLease(self._memory)
        try:
            memory.reserve(MEMORY_PER_BYTE * min(http.content_length or BODY_BYTES_MAX, BODY_BYTES_MAX))
            body = await read_small_body(http, BODY_BYTES_MAX, self._body_seconds_max)
            decoded, _ = decode_typed_body(body or b"{}", decoder)
            return decoded
        finally:
            memory.release()


def conversation_object(conversation: StoredConversation) -> Json:
    """Return a conversation as OpenAI's API shows it."""
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created),
        "metadata": conversation.metadata,
    }


@asynccontextmanager
async def _errors(identity: str) -> AsyncIterator[None]:
    """Translate errors of the store to errors of the API."""
    try:
        yield
    except ConversationNotFound as err:
        raise conversation_not_found(identity) from err
    except ConversationFull as err:
        raise BadRequest(f"A conversation has at most {BYTES_MAX} bytes.", param="items") from err
    except ItemInvalid as err:
        raise BadRequest(str(err), param="items") from err


def _items(given: list[msgspec.Raw], conversation: str) -> list[Json]:
    """Return new items of a conversation, each with an id. Raises BadRequest that names the item."""
    items = input_items(given, conversation, field="items")
    for at, item in enumerate(items):
        if item["type"] == REFERENCE:
            raise BadRequest(f"items[{at}]: an item_reference is not stored.", param=f"items[{at}].type")
    chat_messages(items, None, field="items")  # raises for an item that no request could continue from
    return items


def _item_not_found(http: web.Request) -> NotFound:
    return NotFound(f"The item {http.match_info['item'][:100]!r} does not exist.")
