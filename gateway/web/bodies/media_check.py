"""A check of requests that pass to workers unchanged: media may come only as content, not as an address or a name.

Engines fetch addresses from within their own network (SSRF), some read files of a given name, and some cache
processed media under a name that one client chooses and another can use.
"""

from collections.abc import Mapping

import msgspec

from gateway.domain.errors import BadRequest
from gateway.media.media_places import MEDIA_FIELDS, REFERENCE_FIELDS, ReferenceFound, media_urls


def check_media(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raise BadRequest, with the name of the field, for media that are given by address or by name."""
    for field, raw in fields.items():
        is_media = MEDIA_FIELDS.fullmatch(field) is not None
        if b"{" in bytes(raw) or is_media or REFERENCE_FIELDS.fullmatch(field):
            try:
                value = msgspec.json.decode(raw)
                if value is not None and REFERENCE_FIELDS.fullmatch(field):
                    raise ReferenceFound(field)
                found = next(media_urls({field: value}, field, is_media=is_media), None)
            except ReferenceFound as err:
                raise BadRequest(
                    f"{field}: {err} is not supported; send the content itself.", param=field
                ) from None
            except (msgspec.DecodeError, RecursionError) as err:
                raise BadRequest(f"{field} cannot be read: {err}.", param=field) from err
            if found is not None:
                raise BadRequest(f"{field}: media have to be sent as data: URLs.", param=field)
