"""Item references: items of stored responses that a request names by id instead of repeating them.

    {"type": "item_reference", "id": "msg_" + 32 digits of its response + 16 of its own}

An item's id contains the id of its response, so that no index of items is needed. A response is stored with its
whole conversation, so the response of the last reference usually has the items of all other references too.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from gateway.database.response_store import StoredResponse
from gateway.domain.errors import BadRequest, NotFound
from gateway.web.responses.items import REFERENCE, response_id_of

Json = dict[str, Any]

RESPONSES_MAX = 16
"""The most stored responses that are read for one request."""

_ITEMS = msgspec.json.Decoder(list[dict[str, Any]])


async def resolve_references(
    items: Sequence[Json], get: Callable[[str], Awaitable[StoredResponse | None]]
) -> list[Json]:
    """Return the items, with every reference replaced by the item that it names.

    Args:
        items: The items of a request.
        get: Returns a stored response of the tenant by its id.

    Raises:
        NotFound: A named item does not exist.
        BadRequest: The references name items of too many responses.
    """
    known: dict[str, Json] = {}
    read: set[str | None] = {None}
    for at, item in reversed([*enumerate(items)]):
        if item["type"] != REFERENCE or item["id"] in known:
            continue
        response = response_id_of(item["id"])
        if response not in read and response is not None:
            read.add(response)
            if len(read) - 1 > RESPONSES_MAX:
                raise BadRequest(
                    f"The input names items of more than {RESPONSES_MAX} conversations.", param="input"
                )
            known |= {found["id"]: found for found in conversation_items(await get(response))}
        if item["id"] not in known:
            raise NotFound(
                f"The item {item['id'][:100]!r} does not exist. Only those of stored responses can be named.",
                param=f"input[{at}]",
            )
    return [known[item["id"]] if item["type"] == REFERENCE else item for item in items]


def conversation_items(stored: StoredResponse | None) -> list[Json]:
    """Return all items of a conversation up to the end of a response: its context and its output."""
    if stored is None:
        return []
    output: list[Json] = msgspec.json.decode(stored.response)["output"]
    return [*_ITEMS.decode(stored.context), *output]
