"""BodyBudget of translated APIs: typed, with every field beside as the bytes that it was."""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gateway.domain.errors import BadRequest
from gateway.web.bodies.body_decoding import between
from gateway.web.bodies.body_limits import check_depth, check_size

_Body = TypeVar("_Body")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WHERE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"required field `(?P<name>\w+)`")


def read(body: bytes, decoder: "msgspec.json.Decoder[_Body]") -> tuple[_Body, Mapping[str, msgspec.Raw]]:
    """Raises BadRequest that names the field."""
    try:
        check_size(body)
        between(body)
        decoded = decoder.decode(body)
        between(body)
        fields = _FIELDS.decode(body)
        between(body)
        check_depth(None, fields)
        return decoded, fields
    except msgspec.ValidationError as err:
        where, missing = _WHERE.search(str(err)), _MISSING.search(str(err))
        path = ".".join(part for part in (where and where["path"], missing and missing["name"]) if part)
        text = str(err)[: where.start()] if where is not None else str(err)
        raise BadRequest(f"{path}: {text}." if path else f"{text}.", param=path or None) from err
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as err:
        raise BadRequest(f"The body is not JSON: {err}.") from err
