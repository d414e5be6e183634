"""Words of the OpenAPI document: operations, their refusals, schemas."""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

REFUSALS = {
    "400": "The request cannot be read, or not be done",
    "401": "No such key",
    "403": "Not for this key",
    "404": "No such model, address, or thing that is kept",
    "405": "Another method",
    "408": "The body took too long",
    "409": "Something else is at it",
    "413": "The body is too large",
    "415": "The body is encoded",
    "422": "The worker cannot do it",
    "429": "A limit is reached; `retry-after` says for how long",
    "500": "The gateway has failed",
    "502": "The worker has failed",
    "503": "No worker, or no room; try again",
    "504": "The worker is too slow",
}


def operation(summary: str, answer: Json, *, anthropic_errors: bool = False) -> Json:
    name = "AnthropicError" if anthropic_errors else "Error"
    refusal = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    refusals = {code: {"description": text, "content": refusal} for code, text in REFUSALS.items()}
    return {"summary": summary, "responses": {"200": answer, **refusals}}


def json_body(schema: Json) -> Json:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def form_body(schema: Json) -> Json:
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def said(schema: Json) -> Json:
    return {"description": "The answer", "content": {"application/json": {"schema": schema}}}


def described(required: Iterable[str], **properties: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def parameter(where: str, name: str, **schema: Any) -> Json:
    return {
        "in": where,
        "name": name,
        "required": where == "path",
        "schema": {"type": "string", **({"minLength": 1} if where == "path" else {}), **schema},
    }


def listed(entry: Json) -> Json:
    """A page of these."""
    data = {"type": "array", "items": entry}
    return described(["object", "data", "has_more"], object={"const": "list"}, data=data)


def nullable(kind: str) -> Json:
    return {"type": [kind, "null"]}


ERROR = described(
    ["error"],
    error=described(
        ["message", "type", "param", "code"],
        message={"type": "string"},
        type={"type": "string"},
        param={"type": ["string", "null"]},
        code={"type": ["string", "null"]},
    ),
)
ANTHROPIC_ERROR = described(
    ["type", "error", "request_id"],
    type={"const": "error"},
    error=described(["type", "message"], type={"type": "string"}, message={"type": "string"}),
    request_id={"type": "string"},
)
SPEECH_FORM = described(
    ["file", "model"],
    file={"type": "string", "contentMediaType": "application/octet-stream"},
    model={"type": "string"},
    language={"type": "string"},
    prompt={"type": "string"},
    response_format={"type": "string"},
    temperature={"type": "number"},
    stream={"type": "boolean"},
)
