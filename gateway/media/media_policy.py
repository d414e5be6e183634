"""What media of a conversation may say: where their content is, and nothing that names somebody else's.

Engines fetch what an address says, from within their own network, and some read files of that name (SSRF). So media
come as `data:`; an address on a host that the settings list is fetched here, and goes on as `data:`, so that no
engine fetches anything. Engines also keep processed media under names that a client may choose (vLLM's `uuid`,
SGLang's `content_hash`), across tenants; and unpack tensors (`*_embeds`), which is code. Both are refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest
from gateway.domain.request import InferenceRequest, Surface
from gateway.media.media_fetch import CannotFetch, MediaFetcher

LOCATIONS = frozenset(
    {
        *("url", "image_url", "video_url", "audio_url", "file_url", "file_data"),
        *("image", "video", "audio", "input_image", "input_video", "images", "videos", "audios"),
    }
)
"""Names of fields under which engines look for content, or for where it is."""

NAMES_OF_OTHERS = frozenset({"uuid", "content_hash", "file_id", "image_pil"})
FETCHED_MAX = 16


@dataclass(slots=True)
class Location:
    """An address of a medium: `holder[key]`."""

    holder: Any
    key: Any
    address: str


class MediaRules:
    """`fetcher`: None where nothing is fetched."""

    def __init__(self, fetcher: MediaFetcher | None = None) -> None:
        self._fetcher = fetcher

    async def applied(self, request: InferenceRequest) -> InferenceRequest:
        """The request with the content of its media in it. Raises BadRequest."""
        if request.surface is not Surface.CHAT:
            return request
        found = list(locations(request.prompt))
        if not found:
            return request
        if self._fetcher is None or len(found) > FETCHED_MAX:
            raise _not_fetched(found[0].address)
        try:
            contents = await self._fetcher.fetch([location.address for location in found])
        except CannotFetch as err:
            raise _not_fetched(err.address) from err
        for location, content in zip(found, contents, strict=True):
            location.holder[location.key] = content
        fields = {**request.fields, "messages": msgspec.Raw(msgspec.json.encode(request.prompt))}
        return msgspec.structs.replace(request, fields=fields)


def locations(messages: list[Any]) -> Iterator[Location]:
    """Everything in a conversation that is not the content itself. Raises BadRequest."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if isinstance(part, dict):
                    yield from _in_part(part)


def _in_part(part: dict[str, Any]) -> Iterator[Location]:
    for name, value in part.items():
        if value is not None and (name in NAMES_OF_OTHERS or name.endswith("_embeds")):
            raise BadRequest(
                f"messages: a part may have no {name}; send the content itself.", param="messages"
            )
        if name == "input_audio" and isinstance(value, Mapping):
            _check_base64(value.get("data"))
        if isinstance(value, dict):
            yield from _in_part(value)
        elif name in LOCATIONS:
            yield from _in_value(part, name, value)


def _in_value(holder: Any, key: Any, value: Any) -> Iterator[Location]:
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield Location(holder, key, value)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            if isinstance(each, dict):
                yield from _in_part(each)
            else:
                yield from _in_value(value, at, each)


def _check_base64(data: object) -> None:
    """Audio comes as bare base64. A path could be one too, by its letters, but not by its first bytes."""
    if (isinstance(data, str) and data.startswith(("/", ".", "~"))) or (
        isinstance(data, str) and ":" in data
    ):
        raise BadRequest("messages: the data of input_audio must be base64.", param="messages")


def _not_fetched(address: str) -> BadRequest:
    return BadRequest(
        f"messages: the address {address[:100]!r} cannot be fetched; send the content as a data: URL.",
        param="messages",
    )
