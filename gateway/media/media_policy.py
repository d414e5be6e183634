"""Decides which media a conversation may refer to, and replaces URLs by the content behind them.

Engines fetch any URL from within their own network, and some read files of that name (SSRF). Media therefore have
to be `data:` URLs; a URL on a host that the settings list is fetched by the gateway and passed on as `data:`, so
that no engine fetches anything. Engines also cache processed media under names that a client may choose (vLLM's
`uuid`, SGLang's `content_hash`), across tenants; and they unpack tensors (`*_embeds`), which can run code. Both are
refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import InferenceRequest, Surface
from gateway.media.media_fetch import MediaFetcher, MediaFetchFailed
from gateway.media.media_parts import may_have_media

CONTENT_FIELDS = frozenset(
    {
        *("url", "image_url", "video_url", "audio_url", "file_url", "file_data"),
        *("image", "video", "audio", "input_image", "input_video", "images", "videos", "audios"),
    }
)
"""Names of fields in which engines look for content, or for its URL."""

REFUSED_FIELDS = frozenset({"uuid", "content_hash", "file_id", "image_pil"})
"""Fields that name content which another client may have sent, or that only the engine's own process may set."""
FETCHED_MAX = 16
"""Media of one request that may be fetched."""


@dataclass(slots=True)
class MediaUrl:
    """A URL of a medium, and where it stands in the request: at `holder[key]`."""

    holder: Any
    key: Any
    url: str


class MediaPolicy:
    """Applies the rules for media to requests; without a `fetcher` only `data:` URLs are accepted."""

    def __init__(self, fetcher: MediaFetcher | None = None) -> None:
        self._fetcher = fetcher

    async def apply(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with the content of its media in it. Raises BadRequest."""
        if request.surface is not Surface.CHAT:
            return request
        if not may_have_media(request.prompt):
            return request
        found = list(media_urls(request.prompt))
        if not found:
            return request
        if self._fetcher is None or len(found) > FETCHED_MAX:
            raise _not_fetched(found[0].url)
        try:
            contents = await self._fetcher.fetch([place.url for place in found])
        except MediaFetchFailed as err:
            raise _not_fetched(err.url) from err
        for place, content in zip(found, contents, strict=True):
            place.holder[place.key] = content
        messages = msgspec.json.encode(request.prompt)
        fields = {**request.fields, "messages": msgspec.Raw(messages)}
        return msgspec.structs.replace(request, fields=fields, body_bytes=request.body_bytes + len(messages))


def media_urls(messages: list[Any]) -> Iterator[MediaUrl]:
    """Yield every URL in a conversation that is not the content itself. Raises BadRequest for refused fields."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if isinstance(part, dict):
                    yield from _in_part(part)


def _in_part(part: dict[str, Any]) -> Iterator[MediaUrl]:
    for name, value in part.items():
        if value is not None and (name in REFUSED_FIELDS or name.endswith("_embeds")):
            raise BadRequest(
                f"messages: a part may have no {name}; send the content itself.", param="messages"
            )
        if name == "input_audio" and isinstance(value, Mapping):
            _check_base64(value.get("data"))
        if isinstance(value, dict):
            yield from _in_part(value)
        elif name in CONTENT_FIELDS:
            yield from _in_value(part, name, value)


def _in_value(holder: Any, key: Any, value: Any) -> Iterator[MediaUrl]:
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield MediaUrl(holder, key, value)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            if isinstance(each, dict):
                yield from _in_part(each)
            else:
                yield from _in_value(value, at, each)


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
