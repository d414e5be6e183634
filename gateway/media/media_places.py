"""The places in a JSON value where engines look for media: fields that are recognised by their names, at any depth.

Every engine and every template has names of its own for media, so that names are compared with a pattern, for all
APIs alike.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MEDIA_FIELDS = re.compile(
    r"(.*_)?(url|uri|path|images?|videos?|audios?|frames|file_data|image_data|video_data|audio_data)"
)
REFERENCE_FIELDS = re.compile(r"uuid|content_hash|file_id|image_pil|.*_embeds")
"""Fields that name content that another client may have sent, or that only the engine's own process may set."""


@dataclass(slots=True)
class MediaUrl:
    """A URL of a medium, and where it stands in the request: at `holder[key]`."""

    holder: Any
    key: Any
    url: str


class ReferenceFound(Exception):
    """A value has a field that refers to content by a name; the field is the argument."""


def media_urls(holder: Any, key: Any, *, is_media: bool = False) -> Iterator[MediaUrl]:
    """Yield every medium in `holder[key]` that is not the content itself. Raises ReferenceFound.

    With `is_media` the value itself is read as a medium, or as the address of one.
    """
    value = holder[key]
    if isinstance(value, str):
        if is_media and not value.startswith("data:"):
            yield MediaUrl(holder, key, value)
    elif isinstance(value, list):
        for at in range(len(value)):
            yield from media_urls(value, at, is_media=is_media)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if inner is not None and REFERENCE_FIELDS.fullmatch(name):
                raise ReferenceFound(name)
            yield from media_urls(value, name, is_media=MEDIA_FIELDS.fullmatch(name) is not None)
