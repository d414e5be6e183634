"""Decodes the bodies of translated APIs into a struct, and returns all fields as raw JSON beside it."""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gateway.domain.errors import BadRequest
from gateway.web.bodies.body_decoding import yield_gil_if_long
from gateway.web.bodies.body_limits import FIELDS_MAX, check_depth, check_values, too_many_fields

_Body = TypeVar("_Body")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LOCATION = re.compile(r" - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"required field `(?P<name>\w+)`")


def decode_typed_body(
    body: bytes, decoder: "msgspec.json.Decoder[_Body]"
) -> tuple[_Body, Mapping[str, msgspec.Raw]]:
    """Return the decoded body, and its top-level fields as raw JSON. Raises BadRequest that names the field."""
    try:
        check_values(body)
        yield_gil_if_long(body)
        decoded = decoder.decode(body)
        yield_gil_if_long(body)
        fields = _FIELDS.decode(body)
        yield_gil_if_long(body)
        if len(fields) > FIELDS_MAX:
            raise too_many_fields()
        check_depth(body, None, fields)
        return decoded, fields
    except msgspec.ValidationError as err:
        location, missing = _LOCATION.search(str(err)), _MISSING.search(str(err))
        path = ".".join(part for part in (location and location["path"], missing and missing["name"]) if part)
        text = str(err)[: location.start()] if location is not None else str(err)
        raise BadRequest(f"{path}: {text}." if path else f"{text}.", param=path or None) from err
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise BadRequest(f"The body is not JSON: {err}.") from err
