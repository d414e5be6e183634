"""A check of requests that pass to workers unchanged: media may come only as content, not as an address or a name.

Engines fetch addresses from within their own network (SSRF), some read files of a given name, and some cache
processed media under a name that one client chooses and another can use. In these APIs every engine has its own
fields for media, so that fields are recognised by their names, at any depth.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest

_MEDIA_FIELDS = re.compile(r"(.*_)?(url|uri|path|images?|videos?|audios?|file_data)")
_REFERENCE_FIELDS = re.compile(r"uuid|content_hash|file_id|.*_embeds")


def check_media(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raise BadRequest, with the name of the field, for media that are given by address or by name."""
    for field, raw in fields.items():
        if b"{" in bytes(raw) or _MEDIA_FIELDS.fullmatch(field) or _REFERENCE_FIELDS.fullmatch(field):
            try:
                _check({field: msgspec.json.decode(raw)}, field)
            except (msgspec.DecodeError, RecursionError) as err:
                raise BadRequest(f"{field} cannot be read: {err}.", param=field) from err


def _check(value: Any, field: str, *, is_media: bool = False) -> None:
    """Check one value of a field. `is_media`: an engine reads the value as media, or as their address."""
    if isinstance(value, str):
        if is_media and not value.startswith("data:"):
            raise BadRequest(f"{field}: media have to be sent as data: URLs.", param=field)
    elif isinstance(value, list):
        for part in value:
            _check(part, field, is_media=is_media)
    elif isinstance(value, dict):
        for name, part in value.items():
            if part is not None and _REFERENCE_FIELDS.fullmatch(name):
                raise BadRequest(f"{field}: {name} is not supported; send the content itself.", param=field)
            _check(part, field, is_media=_MEDIA_FIELDS.fullmatch(name) is not None)
