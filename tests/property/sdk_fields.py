"""Bodies with every field that an SDK knows: `sdk_fields.py "MODULE TYPE" ...`, with the SDK on the path.

Writes JSON lines, each with a type as it was given and one body of it.

Each text says where it stands (`<tools.function.name>`), so that it can be looked for in what becomes of the body.
Where a type has alternatives, each of them is in one of the bodies.
"""

import importlib
import json
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from typing_extensions import get_type_hints, is_typeddict

DEPTH_MAX = 9
NUMBERS: Mapping[Any, Any] = {int: 3, float: 0.5, bool: True}


def samples(kind: Any, path: str, depth: int = 0) -> list[Any]:
    """Values of that type: every alternative of every part is in one of them."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return list(args)
    if origin in (Union, types.UnionType):
        return [value for arg in args if arg is not type(None) for value in samples(arg, path, depth)]
    if is_typeddict(kind):
        return fields(kind, path, depth) if depth < DEPTH_MAX else []
    if kind in NUMBERS:
        return [NUMBERS[kind]]
    if kind is str:
        # Media that the gateway would have to fetch are another matter.
        return [f"data:,<{path}>" if path.endswith("url") else f"<{path}>"]
    if origin is not None and issubclass(origin, Mapping):
        inner = samples(args[1], f"{path}.key", depth + 1) if len(args) == 2 else [f"<{path}.key>"]
        return [{"key": value} for value in inner]
    if args and origin is not None:
        return [[value] for value in samples(args[0], path, depth + 1)]
    return [f"<{path}>"] if kind in (Any, object) else []


def fields(kind: Any, path: str, depth: int) -> list[dict[str, Any]]:
    hints = get_type_hints(kind)
    tag = typing.get_args(hints.get("type"))
    here = f"{path}:{tag[0]}" if path and len(tag) == 1 and isinstance(tag[0], str) else path
    values = {name: samples(hint, f"{here}.{name}".lstrip("."), depth + 1) for name, hint in hints.items()}
    values = {name: found for name, found in values.items() if found}
    most = max((len(found) for found in values.values()), default=0)
    return [{name: found[at % len(found)] for name, found in values.items()} for at in range(most)]


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        module, name = kind.split()
        for body in fields(getattr(importlib.import_module(module), name), "", 0):
            sys.stdout.write(json.dumps([kind, body]) + "\n")
