"""Building blocks of the OpenAPI document: operations, error responses, schemas."""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

ERROR_RESPONSES = {
    "400": "The request is malformed, or asks for something that is not possible",
    "401": "The API key is missing or unknown",
    "403": "The API key may not do this",
    "404": "The model, path or stored object does not exist",
    "405": "The path exists, but not for this method",
    "408": "The body did not arrive in time",
    "409": "The object is in use, or a request with the same Idempotency-Key is under way",
    "413": "The body is too large",
    "415": "The body has a Content-Encoding other than gzip, deflate and zstd",
    "422": "The worker cannot process the request",
    "429": "A limit is reached; `retry-after` says when to try again",
    "500": "The gateway has failed",
    "502": "The worker has failed",
    "503": "No worker is available, or the queue is full; try again later",
    "504": "The worker did not answer in time",
}


def operation(summary: str, answer: Json, *, anthropic_errors: bool = False) -> Json:
    """Return an operation with its answer and all error responses."""
    name = "AnthropicError" if anthropic_errors else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    errors = {code: {"description": text, "content": content} for code, text in ERROR_RESPONSES.items()}
    return {"summary": summary, "responses": {"200": answer, **errors}}


def json_body(schema: Json) -> Json:
    """Return the request body of an operation that takes JSON."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def form_body(schema: Json) -> Json:
    """Return the request body of an operation that takes a form."""
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def json_answer(schema: Json) -> Json:
    """Return an answer of JSON."""
    return {"description": "The answer", "content": {"application/json": {"schema": schema}}}


def object_schema(required: Iterable[str], **properties: Json) -> Json:
    """Return the schema of an object."""
    return {"type": "object", "required": list(required), "properties": properties}


def parameter(location: str, name: str, **schema: Any) -> Json:
    """Return a parameter in `path` or `query`."""
    return {
        "in": location,
        "name": name,
        "required": location == "path",
        "schema": {"type": "string", **({"minLength": 1} if location == "path" else {}), **schema},
    }


def list_schema(entry: Json) -> Json:
    """Return the schema of a page of entries."""
    data = {"type": "array", "items": entry}
    return object_schema(["object", "data", "has_more"], object={"const": "list"}, data=data)


def nullable(kind: str) -> Json:
    """Return the schema of a value that may be null."""
    return {"type": [kind, "null"]}


ERROR = object_schema(
    ["error"],
    error=object_schema(
        ["message", "type", "param", "code"],
        message={"type": "string"},
        type={"type": "string"},
        param={"type": ["string", "null"]},
        code={"type": ["string", "null"]},
    ),
)
ANTHROPIC_ERROR = object_schema(
    ["type", "error", "request_id"],
    type={"const": "error"},
    error=object_schema(["type", "message"], type={"type": "string"}, message={"type": "string"}),
    request_id={"type": "string"},
)
SPEECH_FORM = object_schema(
    ["file", "model"],
    file={"type": "string", "contentMediaType": "application/octet-stream"},
    model={"type": "string"},
    language={"type": "string"},
    prompt={"type": "string"},
    response_format={"type": "string"},
    temperature={"type": "number"},
    stream={"type": "boolean"},
)
