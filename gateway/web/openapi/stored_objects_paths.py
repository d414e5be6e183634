"""What the OpenAPI document says of kept things: responses, files, batches of both APIs."""

from typing import Any

from gateway.web.anthropic import batches as message_batches
from gateway.web.openai.batches import SURFACES
from gateway.web.openai.files import PURPOSES
from gateway.web.openapi.descriptions import (
    described,
    form_body,
    listed,
    nullable,
    operation,
    parameter,
    said,
)

Json = dict[str, Any]

FILE = described(
    ["id", "object", "bytes", "created_at", "filename", "purpose"],
    object={"const": "file"},
    bytes={"type": "integer"},
    created_at={"type": "integer"},
    expires_at={"type": "integer"},
    filename={"type": "string"},
    purpose={"type": "string"},
)
BATCH = described(
    ["id", "object", "endpoint", "input_file_id", "completion_window", "status", "request_counts"],
    object={"const": "batch"},
    endpoint={"enum": sorted(SURFACES)},
    status={"type": "string"},
    output_file_id=nullable("string"),
    error_file_id=nullable("string"),
    request_counts=described(["total", "completed", "failed"]),
)

MESSAGE_BATCH = described(
    ["id", "type", "processing_status", "request_counts", "created_at", "expires_at", "results_url"],
    type={"const": "message_batch"},
    processing_status={"enum": ["in_progress", "canceling", "ended"]},
    request_counts=described(["processing", "succeeded", "errored", "canceled", "expired"]),
    created_at={"type": "string", "format": "date-time"},
    expires_at={"type": "string", "format": "date-time"},
    results_url=nullable("string"),
)


def paths() -> Json:
    """Path to what can be done there."""
    return _responses() | _files() | _batches() | _message_batches()


def _responses() -> Json:
    response = said(described(["id", "object", "status", "output"], object={"const": "response"}))
    here, one = [parameter("path", "response")], "/v1/responses/{response}"
    return {
        one: {
            "get": operation("A response that is kept", response) | {"parameters": here},
            "delete": operation("Forgets it", said(described(["id", "deleted"]))) | {"parameters": here},
        },
        f"{one}/cancel": {
            "post": operation("Ends one that runs in the background", response) | {"parameters": here}
        },
        f"{one}/input_items": {
            "get": operation("What it was asked with", said(listed({"type": "object"})))
            | {"parameters": [*here, *_page(100)]}
        },
    }


def _files() -> Json:
    form = described(
        ["file", "purpose"],
        file={"type": "string", "contentMediaType": "application/octet-stream"},
        purpose={"enum": list(PURPOSES)},
    )
    here, one = [parameter("path", "file")], "/v1/files/{file}"
    content = {"description": "The content", "content": {"application/octet-stream": {}}}
    return {
        "/v1/files": {
            "get": operation("Files that are kept", said(listed(FILE)))
            | {"parameters": [*_page(10_000), parameter("query", "purpose")]},
            "post": operation("Keeps a file", said(FILE)) | form_body(form),
        },
        one: {
            "get": operation("One of them", said(FILE)) | {"parameters": here},
            "delete": operation("Forgets it", said(described(["id", "deleted"]))) | {"parameters": here},
        },
        f"{one}/content": {"get": operation("What is in it", content) | {"parameters": here}},
    }


def _batches() -> Json:
    asked = described(
        ["input_file_id", "endpoint", "completion_window"],
        input_file_id={"type": "string"},
        endpoint={"enum": sorted(SURFACES)},
        completion_window={"type": "string"},
        metadata={"type": ["object", "null"], "additionalProperties": {"type": "string"}},
    )
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    here, one = [parameter("path", "batch")], "/v1/batches/{batch}"
    return {
        "/v1/batches": {
            "get": operation("Batches", said(listed(BATCH))) | {"parameters": _page(100)},
            "post": operation("Begins a batch of requests", said(BATCH)) | {"requestBody": body},
        },
        one: {"get": operation("How far one is", said(BATCH)) | {"parameters": here}},
        f"{one}/cancel": {"post": operation("Ends it", said(BATCH)) | {"parameters": here}},
    }


def _message_batches() -> Json:
    request = described(
        ["custom_id", "params"],
        custom_id={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        params={"type": "object"},
    )
    asked = described(["requests"], requests={"type": "array", "minItems": 1, "items": request})
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    here, one = [parameter("path", "batch")], "/v1/messages/batches/{batch}"
    page = [
        parameter("query", "limit", type="integer", minimum=1, maximum=message_batches.BATCHES_MAX),
        parameter("query", "after_id"),
        parameter("query", "before_id"),
    ]
    found = described(["data", "has_more"], data={"type": "array", "items": MESSAGE_BATCH})
    results = {"description": "A line for each request", "content": {"application/x-jsonl": {}}}

    def done(summary: str, answer: Json) -> Json:
        return operation(summary, answer, anthropic_errors=True) | {"parameters": here}

    return {
        "/v1/messages/batches": {
            "get": operation("Batches of messages", said(found), anthropic_errors=True)
            | {"parameters": page},
            "post": operation("Begins a batch of messages", said(MESSAGE_BATCH), anthropic_errors=True)
            | {"requestBody": body},
        },
        one: {
            "get": done("How far one is", said(MESSAGE_BATCH)),
            "delete": done("Forgets one that has ended", said(described(["id", "type"]))),
        },
        f"{one}/cancel": {"post": done("Ends it", said(MESSAGE_BATCH))},
        f"{one}/results": {"get": done("What came of it", results)},
    }


def _page(limit_max: int) -> list[Json]:
    return [
        parameter("query", "limit", type="integer", minimum=1, maximum=limit_max),
        parameter("query", "order", enum=["asc", "desc"]),
        parameter("query", "after"),
    ]
