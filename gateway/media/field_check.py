"""Checks fields that pass to workers unchanged: media must be included as content, not as an address or a name.

Engines fetch addresses from within their own network (SSRF), some read files of a given name, and some cache
processed media under a name that one client chooses and another can use.
"""

from collections.abc import Mapping

import msgspec

from gateway.domain.errors import BadRequest
from gateway.media.media_places import (
    MEDIA_FIELDS,
    REFERENCE_FIELDS,
    UNREAD_FIELDS,
    ReferenceFound,
    field_media,
    text_media,
)


def check_media(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raise BadRequest, with the name of the field, for media that are given by address or by name."""
    for field, raw in fields.items():
        is_media = MEDIA_FIELDS.fullmatch(field) is not None or REFERENCE_FIELDS.fullmatch(field) is not None
        if is_media or (b"{" in bytes(raw) and field not in UNREAD_FIELDS):
            try:
                holder = {field: msgspec.json.decode(raw)}
                found = next((field_media if is_media else text_media)(holder, field), None)
            except ReferenceFound as err:
                raise BadRequest(f"{field}: {err}.", param=field) from None
            except (msgspec.DecodeError, RecursionError) as err:
                raise BadRequest(f"{field} cannot be read: {err}.", param=field) from err
            if found is not None:
                raise BadRequest(f"{field}: media have to be sent as data: URLs.", param=field)
