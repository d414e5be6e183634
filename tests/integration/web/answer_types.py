"""Checks answers against the types of an official SDK, strictly. test_answer_types.py runs it.

Usage: python answer_types.py, with lines of JSON on stdin: {"type": "anthropic.types:Message", "value": {..}}.
Prints a line for each value that the type does not allow, and for each field that the type does not have.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError


@cache
def type_of(kind: str) -> TypeAdapter[Any]:
    module, name = kind.split(":")
    return TypeAdapter(getattr(importlib.import_module(module), name))


def mistakes(kind: str, value: Any) -> Iterator[str]:
    try:
        read = type_of(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as err:
        yield from (f"{kind} {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in err.errors())
    else:
        yield from unknown_fields(read, kind)


def unknown_fields(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for name in value.model_extra or ():
            yield f"{where}.{name}: the type has no such field"
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from unknown_fields(one, f"{where}[]")


for line in sys.stdin:
    given = json.loads(line)
    for mistake in mistakes(given["type"], given["value"]):
        print(mistake)
