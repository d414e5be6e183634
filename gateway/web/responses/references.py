"""Items that a request names in place of saying them again.

    {"type": "item_reference", "id": "msg_" + 32 digits of its response + 16 of its own}

An item's id says in which response it came, so that nothing else need be remembered of where it is. A response is
kept with its whole conversation: the last one that is named mostly has what all the others name.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from gateway.database.response_store import StoredResponse
from gateway.domain.errors import BadRequest, NotFound
from gateway.web.responses.items import REFERENCE, response_of

Json = dict[str, Any]

RESPONSES_MAX = 16
"""Read for one request."""

_ITEMS = msgspec.json.Decoder(list[dict[str, Any]])


async def resolved(
    items: Sequence[Json], get: Callable[[str], Awaitable[StoredResponse | None]]
) -> list[Json]:
    """The items with those that are named in place of their names. `get`: a response of this tenant.

    Raises NotFound for what is not there, BadRequest for too many responses, and what `get` raises.
    """
    known: dict[str, Json] = {}
    read: set[str | None] = {None}
    for at, item in reversed([*enumerate(items)]):
        if item["type"] != REFERENCE or item["id"] in known:
            continue
        response = response_of(item["id"])
        if response not in read and response is not None:
            read.add(response)
            if len(read) - 1 > RESPONSES_MAX:
                raise BadRequest(
                    f"The input names items of more than {RESPONSES_MAX} conversations.", param="input"
                )
            known |= {found["id"]: found for found in conversation(await get(response))}
        if item["id"] not in known:
            raise NotFound(
                f"The item {item['id'][:100]!r} does not exist. Only those of stored responses can be named.",
                param=f"input[{at}]",
            )
    return [known[item["id"]] if item["type"] == REFERENCE else item for item in items]


def conversation(stored: StoredResponse | None) -> list[Json]:
    """What a response has ended with: its context and its output."""
    if stored is None:
        return []
    output: list[Json] = msgspec.json.decode(stored.response)["output"]
    return [*_ITEMS.decode(stored.context), *output]
