"""Decides which media a conversation may refer to, and replaces URLs by the content behind them.

Engines fetch any URL from within their own network, and some read files of that name (SSRF). Media therefore have
to be `data:` URLs; a URL on a host that the settings list is fetched by the gateway and passed on as `data:`, so
that no engine fetches anything. Engines also cache processed media under names that a client may choose (vLLM's
`uuid`, SGLang's `content_hash`), across tenants; and they unpack tensors (`*_embeds`), which can run code. Both are
refused.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.memory_budget import MemoryLease
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.field_check import check_media
from gateway.media.media_fetch import MediaFetcher, MediaFetchFailed
from gateway.media.media_places import (
    TEXT_FIELDS,
    UNREAD_FIELDS,
    MediaUrl,
    ReferenceFound,
    field_media,
)

FETCHED_MAX = 16
"""The most media of one request that are fetched."""


PLAIN_FIELDS = TEXT_FIELDS | UNREAD_FIELDS
"""Fields of a message without media, unless its content consists of parts."""


class MediaPolicy:
    """Applies the rules for media to requests; without a `fetcher` only `data:` URLs are accepted.

    `pass_fields` are names of further fields that pass to workers.
    """

    def __init__(self, fetcher: MediaFetcher | None = None, pass_fields: Collection[str] = ()) -> None:
        self._fetcher = fetcher
        self._pass_fields = frozenset(pass_fields)

    async def apply(self, request: InferenceRequest, tenant: Tenant, memory: MemoryLease) -> InferenceRequest:
        """Return the request with the content of its media included; `memory` accounts for it.

        Raises BadRequest, Overloaded, TenantQueueFull.
        """
        if self._pass_fields and request.generates:
            passed = request.fields.keys() & self._pass_fields
            check_media({name: request.fields[name] for name in passed - {"messages", "prompt"}})
        if request.surface is not Surface.CHAT:
            return request
        if not _may_have_media(request.prompt):
            return request
        try:
            found = list(message_media(request.prompt))
        except ReferenceFound as err:
            raise BadRequest(f"messages: {err}.", param="messages") from None
        if not found:
            return request
        if self._fetcher is None or len(found) > FETCHED_MAX:
            raise _not_fetched(found[0].url)
        try:
            contents = await self._fetcher.fetch([place.url for place in found], tenant.id, memory)
        except MediaFetchFailed as err:
            raise _not_fetched(err.url) from err
        for place, content in zip(found, contents, strict=True):
            place.holder[place.key] = content
        messages = msgspec.json.encode(request.prompt)
        fields = {**request.fields, "messages": msgspec.Raw(messages)}
        return msgspec.structs.replace(request, fields=fields, body_bytes=request.body_bytes + len(messages))


def message_media(messages: Sequence[dict[str, Any]]) -> Iterator[MediaUrl]:
    """Yield every medium of a conversation that is not the content itself. Raises ReferenceFound."""
    for message in messages:
        # Templates read media from fields of the message, too.
        for name in message:
            yield from field_media(message, name)


def _may_have_media(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether any message has more than texts in the usual fields."""
    for message in messages:
        if not message.keys() <= PLAIN_FIELDS or isinstance(message.get("content"), (list, dict)):
            return True
    return False


def _not_fetched(url: str) -> BadRequest:
    return BadRequest(
        f"messages: the address {url[:100]!r} cannot be fetched; send the content as a data: URL.",
        param="messages",
    )
