"""The JSON schema of the settings file, which editors use to complete and check it."""

from typing import Any

import msgspec

from gateway.settings.tree import Settings
from gateway.settings.types import MediaHost, Moment, Network, Secret

FILE_NAME = "settings.schema.json"

_TEXTS: dict[type, str] = {
    Secret: "Text, often a reference: ${env:NAME} or ${file:PATH}.",
    Moment: "A day, or a time with its time zone.",
    Network: "A range of addresses, such as 10.0.0.0/8.",
    MediaHost: "A host, such as cdn.example.com or *.example.com.",
}


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema of the settings file."""
    schema: dict[str, Any] = msgspec.json.schema(Settings, schema_hook=_schema_of)
    worker = schema["$defs"]["WorkerSettings"]
    # An entry may be an address alone; an entry without an id gets one.
    worker["required"] = [name for name in worker["required"] if name != "id"]
    workers = schema["$defs"]["Settings"]["properties"]["workers"]
    workers["items"] = {"anyOf": [workers["items"], worker["properties"]["url"]]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "radixgate settings",
        **schema,
    }


def _schema_of(kind: type) -> dict[str, Any]:
    if kind not in _TEXTS:
        raise NotImplementedError
    return {"type": "string", "description": _TEXTS[kind]}
