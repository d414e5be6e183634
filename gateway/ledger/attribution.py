"""Reads a client's labels of a request, `user` and `metadata` of its body, cut to bounds.

Neither ever causes a refusal; what does not fit is left out. The bounds of metadata are OpenAI's: 16 pairs, names
of 64 characters, values of 512.
"""

from collections.abc import Mapping

import msgspec

from gateway.telemetry.request_record import NO_TAGS

USER_MAX = 256
TAGS_MAX = 16
NAME_MAX = 64
VALUE_MAX = 512
RAW_BYTES_MAX = 64 * 1024
"""The longest field that is decoded; longer ones exceed OpenAI's bounds anyway."""


_UNFIT_IN_A_NAME = ('"', "\\")
"""Characters that end a name in a JSON path, by which queries find a tag."""


def attribution(fields: Mapping[str, msgspec.Raw]) -> tuple[str | None, Mapping[str, str]]:
    """Return (user, tags) from a body's top-level fields."""
    user = fields.get("user")
    tags = fields.get("metadata")
    return (_user(user) if user is not None else None, _tags(tags) if tags is not None else NO_TAGS)


def storable(text: str, length_max: int) -> str:
    """Return the text as every database accepts it.

    That is without NUL, which PostgreSQL refuses, and without half of a surrogate pair.
    """
    return text[:length_max].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _user(raw: msgspec.Raw) -> str | None:
    found = _decoded(raw)
    return storable(found, USER_MAX) if isinstance(found, str) and found else None


def _tags(raw: msgspec.Raw) -> Mapping[str, str]:
    found = _decoded(raw)
    if not isinstance(found, dict):
        return NO_TAGS
    tags: dict[str, str] = {}
    for name, value in found.items():
        if len(tags) == TAGS_MAX:
            break
        fits = 0 < len(name) <= NAME_MAX and not any(c in name for c in _UNFIT_IN_A_NAME)
        if fits and isinstance(value, str) and len(value) <= VALUE_MAX:
            tags[storable(name, NAME_MAX)] = storable(value, VALUE_MAX)
    return tags


def _decoded(raw: msgspec.Raw) -> object:
    if len(bytes(raw)) > RAW_BYTES_MAX:
        return None
    try:
        found: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found
