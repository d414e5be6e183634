"""Shape of a body: how many values it has and how deep it goes, before it becomes objects or goes to a worker.

Thirty megabytes of `[],[],[],...` are within any bound of bytes, and half a minute for the event loop. Brackets and
commas are counted as bytes, which costs microseconds; only where a long text has very many of them are they counted
once more without what stands in strings.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.errors import BadRequest

CONTAINERS_MAX = 100_000
"""Objects and arrays of one body."""
VALUES_MAX = 2_000_000
"""Commas of one body: a prompt may be a million token ids."""
DEPTH_MAX = 64

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.S)


def check_size(body: bytes) -> None:
    """Refuses bodies of too many values. Raises BadRequest."""
    if not _too_many(body):
        return
    if _too_many(_STRING.sub(b"", body)):
        raise BadRequest(
            f"The body has more than {CONTAINERS_MAX} objects and arrays, or more than {VALUES_MAX} values."
        )


def check_depth(messages: object, fields: Mapping[str, msgspec.Raw]) -> None:
    """Refuses what is nested too deeply. `messages`: as they were decoded. Raises BadRequest."""
    if messages is not None and _deeper(messages, DEPTH_MAX):
        raise _too_deep("messages")
    for name, value in fields.items():
        if name not in ("messages", "prompt") and value_is_deep(bytes(value)):
            raise _too_deep(name)


def value_is_deep(value: bytes) -> bool:
    """One value, as it came: fewer brackets than levels need no look."""
    return value.count(b"[") + value.count(b"{") > DEPTH_MAX and _deeper(
        msgspec.json.decode(value), DEPTH_MAX
    )


def _too_many(text: bytes) -> bool:
    return text.count(b"{") + text.count(b"[") > CONTAINERS_MAX or text.count(b",") > VALUES_MAX


def _too_deep(name: str) -> BadRequest:
    # A name of the client's own is quoted, and may be long.
    return BadRequest(f"{name[:100]} is nested more than {DEPTH_MAX} levels deep.", param=name[:100])


def _deeper(value: Any, levels: int) -> bool:
    """Has it more levels than that?"""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return levels == 0 or any(_deeper(each, levels - 1) for each in value if isinstance(each, dict | list))
