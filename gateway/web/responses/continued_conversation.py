"""The stored conversation that a request of the Responses API continues."""

import logging
from collections.abc import Sequence
from typing import Any

from gateway.database.conversation_store import ConversationNotFound, ConversationStore, ItemInvalid
from gateway.database.database import DatabaseDown
from gateway.domain.errors import BadRequest, NotFound, ResponsesUnavailable
from gateway.web.responses import wire

log = logging.getLogger(__name__)

Json = dict[str, Any]


class ContinuedConversation:
    """The stored conversation of one request."""

    def __init__(self, store: ConversationStore, tenant: str, identity: str) -> None:
        self.id = identity
        self._store = store
        self._tenant = tenant

    async def items(self) -> list[Json]:
        """Return the items so far. Raises NotFound, ResponsesUnavailable."""
        try:
            return await self._store.items(self._tenant, self.id)
        except ConversationNotFound as err:
            raise conversation_not_found(self.id, param="conversation") from err
        except DatabaseDown as err:
            raise ResponsesUnavailable from err

    def check_own_items(self, earlier: Sequence[Json], own: Sequence[Json]) -> None:
        """Raise BadRequest if the conversation already has an item of the request."""
        known = {item["id"] for item in earlier}
        for at, item in enumerate(own):
            if item["id"] in known:
                raise BadRequest(
                    f"Duplicate item found with id {item['id'][:100]!r}: the conversation has it already.",
                    param=f"input[{at}]",
                )
            known.add(item["id"])

    async def append(self, response: str, items: Sequence[Json]) -> bool:
        """Add the items of a response that has ended, and return whether that was possible."""
        try:
            await self._store.append(self._tenant, self.id, items, beyond=True)
        except (ConversationNotFound, ItemInvalid, DatabaseDown) as err:
            # The response was generated and charged, so the client gets it, marked as not in the conversation.
            log.warning("response %s is not in its conversation: %s", response, err or "deleted meanwhile")
            return False
        return True


def continued_conversation(
    store: ConversationStore | None, tenant: str, asked: str | wire.ConversationReference | None
) -> ContinuedConversation | None:
    """Return the conversation that a request names; None if it names none. Raises BadRequest without a database."""
    if asked is None:
        return None
    if store is None or not store.enabled:
        raise BadRequest("This gateway stores no conversations.", param="conversation")
    return ContinuedConversation(store, tenant, asked if isinstance(asked, str) else asked.id)


def conversation_not_found(identity: str, param: str | None = None) -> NotFound:
    """Return the error for a conversation that the tenant does not have."""
    return NotFound(f"The conversation {identity[:100]!r} does not exist.", param=param)
