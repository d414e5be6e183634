"""Finds the places in a JSON value where engines look for media, at any depth, by one rule for all APIs.

    known to be text       text, filename, ...        passes
    known to be media      image_url, path, ...       a `data:` URL passes; an address is fetched, or refused
    a reference            uuid, file_id, ...         refused
    any other name                                    passes, unless its value looks like an address or a path

Every engine and every template has names of its own for media, so names of media are compared with a pattern.
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


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TEXT_FIELDS = _names(
    """content context detail encrypted_content filename format id language media_type mime_type name query
    reasoning reasoning_content refusal role signature snippet text thinking thought_signature title tool_call_id
    tool_use_id type"""
)
"""Fields that no engine reads as an address."""

UNREAD_FIELDS = _names(
    """annotations cache_control chat_template_kwargs citations extra_content function_call functions json_schema
    metadata provider_specific_fields reasoning_details response_format structured_outputs thinking_blocks
    tool_calls tool_choice tools"""
)
"""Fields in which no engine looks for media, however deep: quotations and notes of providers, schemas, options."""

ADDRESS_MAX = 4096
"""The characters of a value that are examined; Linux has no longer paths."""

_BEGINNING = re.compile(
    r"""[a-z][a-z0-9+.-]{0,30}:[/\\] | (?:file|https?|ftp|s3|gs): | [/~\\] | \.{1,2}[/\\]
    | [^\s/\\.]+\.[^\s/\\]*[/\\]""",
    re.IGNORECASE | re.VERBOSE,
)
"""A scheme, the beginning of a path, or a host with a path."""

_FILE_ENDING = re.compile(r"\.[a-z][a-z0-9]{1,4}$", re.IGNORECASE)
_FILE_ENDING_MAX = 6
_SPACE = re.compile(r"\s")

BASE64_JPEG = "/9j/"
"""The beginning of every JPEG in base64, which would otherwise look like a path."""


@dataclass(slots=True)
class MediaUrl:
    """A URL of a medium, and its place in the request, `holder[key]`."""

    holder: Any
    key: Any
    url: str


class ReferenceFound(Exception):
    """A field refers to content by a name or an address, in place of the content; the text names the field."""


def field_media(holder: Any, name: str) -> Iterator[MediaUrl]:
    """Yield every medium in the field `holder[name]` that is not the content itself. Raises ReferenceFound."""
    value = holder[name]
    if value is None or name in UNREAD_FIELDS:
        return
    if REFERENCE_FIELDS.fullmatch(name):
        raise ReferenceFound(f"{name} is not supported; send the content itself")
    if MEDIA_FIELDS.fullmatch(name):
        yield from _media(holder, name, is_media=True)
    else:
        yield from _media(holder, name, check=name if name not in TEXT_FIELDS else None)


def text_media(holder: Any, name: str) -> Iterator[MediaUrl]:
    """Yield the media in the field `holder[name]`, whose own strings are texts. Raises ReferenceFound."""
    yield from _media(holder, name)


def _media(holder: Any, key: Any, *, is_media: bool = False, check: str | None = None) -> Iterator[MediaUrl]:
    """Yield the media in `holder[key]`. Raises ReferenceFound.

    Args:
        holder: An object or a list.
        key: A key of the object, or an index of the list.
        is_media: Whether strings are media, or the addresses of media.
        check: The name of the field if its strings must not be addresses.
    """
    value = holder[key]
    if isinstance(value, str):
        if value.startswith("data:"):
            return
        if is_media:
            yield MediaUrl(holder, key, value)
        elif check is not None:
            _check_no_address(check, value)
    elif isinstance(value, list):
        for at in range(len(value)):
            yield from _media(value, at, is_media=is_media, check=check)
    elif isinstance(value, Mapping):
        for name in value:
            yield from field_media(value, name)


def _check_no_address(name: str, value: str) -> None:
    """Raise ReferenceFound for a string that looks like an address or a path."""
    if name == "data":
        # A path could be base64 by its letters, but not by its first characters.
        if (value.startswith(("/", ".", "~", "\\")) and not value.startswith(BASE64_JPEG)) or ":" in value:
            raise ReferenceFound("data must be base64")
    elif _is_address(value):
        raise ReferenceFound(f"{name} is not supported with an address; send the content itself")


def _is_address(value: str) -> bool:
    """Return whether a string may be an address or a path: by its beginning, or one word with a file's ending."""
    text = value.strip()[:ADDRESS_MAX]
    if _BEGINNING.match(text):
        return True
    return _FILE_ENDING.search(text[-_FILE_ENDING_MAX:]) is not None and not _SPACE.search(text)
