"""Decides which media a conversation may refer to, and replaces URLs by the content behind them.

Engines fetch any URL from within their own network, and some read files of that name (SSRF). Media therefore have
to be `data:` URLs; a URL on a host that the settings list is fetched by the gateway and passed on as `data:`, so
that no engine fetches anything. Engines also cache processed media under names that a client may choose (vLLM's
`uuid`, SGLang's `content_hash`), across tenants; and they unpack tensors (`*_embeds`), which can run code. Both are
refused.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.memory_budget import MemoryLease
from gateway.domain.request import InferenceRequest, Surface
from gateway.domain.tenant import Tenant
from gateway.media.media_fetch import MediaFetcher, MediaFetchFailed
from gateway.media.media_places import (
    MEDIA_FIELDS,
    REFERENCE_FIELDS,
    MediaUrl,
    ReferenceFound,
    media_urls,
)

FETCHED_MAX = 16
"""Media of one request that may be fetched."""


PLAIN_FIELDS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "refusal"}
)
"""Fields of a message that are no media. Those of tool calls are texts of the model."""


class MediaPolicy:
    """Applies the rules for media to requests; without a `fetcher` only `data:` URLs are accepted."""

    def __init__(self, fetcher: MediaFetcher | None = None) -> None:
        self._fetcher = fetcher

    async def apply(self, request: InferenceRequest, tenant: Tenant, memory: MemoryLease) -> InferenceRequest:
        """Return the request with the content of its media in it, which `memory` holds.

        Raises BadRequest, Overloaded, TenantQueueFull.
        """
        if request.surface is not Surface.CHAT:
            return request
        if not _may_have_media(request.prompt):
            return request
        try:
            found = list(message_media(request.prompt))
        except ReferenceFound as err:
            raise BadRequest(
                f"messages: {err} is not supported; send the content itself.", param="messages"
            ) from None
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
    """Yield every medium of a conversation that is not the content itself. Raises BadRequest, ReferenceFound."""
    for message in messages:
        for name in message:
            if name == "content":
                if isinstance(message["content"], list):
                    yield from media_urls(message, name)
                    _check_audio(message["content"])
            elif name not in PLAIN_FIELDS:
                # Templates read media from fields of the message, too.
                if message[name] is not None and REFERENCE_FIELDS.fullmatch(name):
                    raise ReferenceFound(name)
                yield from media_urls(message, name, is_media=MEDIA_FIELDS.fullmatch(name) is not None)


def _may_have_media(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether any message has more than texts in the usual fields."""
    for message in messages:
        if not message.keys() <= PLAIN_FIELDS or isinstance(message.get("content"), list):
            return True
    return False


def _check_audio(content: Any) -> None:
    """Check the data of every `input_audio` in a value. Raises BadRequest."""
    if isinstance(content, list):
        for part in content:
            _check_audio(part)
    elif isinstance(content, dict):
        for name, value in content.items():
            if name == "input_audio" and isinstance(value, dict):
                _check_base64(value.get("data"))
            _check_audio(value)


def _check_base64(data: object) -> None:
    """Refuse `input_audio` data that looks like a path or a URL. Raises BadRequest.

    Audio comes as bare base64. A path could be base64 by its letters, but not by its first characters.
    """
    if (isinstance(data, str) and data.startswith(("/", ".", "~"))) or (
        isinstance(data, str) and ":" in data
    ):
        raise BadRequest("messages: the data of input_audio must be base64.", param="messages")


def _not_fetched(url: str) -> BadRequest:
    return BadRequest(
        f"messages: the address {url[:100]!r} cannot be fetched; send the content as a data: URL.",
        param="messages",
    )
