"""Media in what is passed on as it came: by their content only.

Engines fetch what an address says, from within their own network (SSRF), some read files of that name, and some
keep processed media under names that a client chooses, for whoever says them next. In these APIs every engine has
fields of its own for media, so it is names that are looked at, wherever they stand.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.errors import BadRequest

_PLACES = re.compile(r"(.*_)?(url|uri|path|images?|videos?|audios?|file_data)")
_NAMES_OF_OTHERS = re.compile(r"uuid|content_hash|file_id|.*_embeds")


def check(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raises BadRequest that names the field."""
    for field, raw in fields.items():
        if b"{" in bytes(raw) or _PLACES.fullmatch(field) or _NAMES_OF_OTHERS.fullmatch(field):
            try:
                _check({field: msgspec.json.decode(raw)}, field)
            except (msgspec.DecodeError, RecursionError) as err:
                raise BadRequest(f"{field} cannot be read: {err}.", param=field) from err


def _check(value: Any, field: str, *, place: bool = False) -> None:
    """`place`: it stands where an engine looks for content, or for where it is."""
    if isinstance(value, str):
        if place and not value.startswith("data:"):
            raise BadRequest(f"{field}: media come as data: URLs.", param=field)
    elif isinstance(value, list):
        for part in value:
            _check(part, field, place=place)
    elif isinstance(value, dict):
        for name, part in value.items():
            if part is not None and _NAMES_OF_OTHERS.fullmatch(name):
                raise BadRequest(f"{field}: {name} is not supported; send the content itself.", param=field)
            _check(part, field, place=_PLACES.fullmatch(name) is not None)
