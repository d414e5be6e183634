"""Reads the protobuf in which helm sends its Secrets: `k8s\\0`, Unknown{raw = 2}, Secret{metadata, data, type}."""

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\x00"


def secret_of(body: bytes) -> dict[str, Any]:
    """The Secret as JSON has it."""
    raw = next(value for number, value in _fields(body.removeprefix(MAGIC)) if number == 2)
    secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {}, "data": {}}
    for number, value in _fields(raw):
        if number == 1:
            secret["metadata"] = _metadata(value)
        elif number == 2:
            name, content = _pair(value)
            secret["data"][name] = base64.b64encode(content).decode()
        elif number == 3:
            secret["type"] = value.decode()
    return secret


def _metadata(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"labels": {}}
    for number, value in _fields(body):
        if number == 1:
            found["name"] = value.decode()
        elif number == 3:
            found["namespace"] = value.decode()
        elif number == 11:
            name, content = _pair(value)
            found["labels"][name] = content.decode()
    return found


def _pair(body: bytes) -> tuple[str, bytes]:
    parts = dict(_fields(body))
    return parts[1].decode(), parts.get(2, b"")


def _fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Every field with a length; numbers are skipped."""
    at = 0
    while at < len(body):
        key, at = _varint(body, at)
        if key & 7 == 2:
            length, at = _varint(body, at)
            yield key >> 3, body[at : at + length]
            at += length
        elif key & 7 == 0:
            _, at = _varint(body, at)
        else:
            raise ValueError(f"wire type {key & 7}")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
