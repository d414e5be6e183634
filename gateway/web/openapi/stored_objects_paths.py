"""The OpenAPI document's paths of stored objects: responses, conversations, files, batches of both APIs."""

from typing import Any

from gateway.web.anthropic import batches as message_batches
from gateway.web.openai.batches import SURFACES
from gateway.web.openai.files import PURPOSES
from gateway.web.openapi.descriptions import (
    form_body,
    json_answer,
    list_schema,
    nullable,
    object_schema,
    operation,
    parameter,
)
from gateway.web.responses.conversations import ADDED_MAX

Json = dict[str, Any]

FILE = object_schema(
    ["id", "object", "bytes", "created_at", "filename", "purpose"],
    object={"const": "file"},
    bytes={"type": "integer"},
    created_at={"type": "integer"},
    expires_at={"type": "integer"},
    filename={"type": "string"},
    purpose={"type": "string"},
)
BATCH = object_schema(
    ["id", "object", "endpoint", "input_file_id", "completion_window", "status", "request_counts"],
    object={"const": "batch"},
    endpoint={"enum": sorted(SURFACES)},
    status={"type": "string"},
    output_file_id=nullable("string"),
    error_file_id=nullable("string"),
    request_counts=object_schema(["total", "completed", "failed"]),
)

MESSAGE_BATCH = object_schema(
    ["id", "type", "processing_status", "request_counts", "created_at", "expires_at", "results_url"],
    type={"const": "message_batch"},
    processing_status={"enum": ["in_progress", "canceling", "ended"]},
    request_counts=object_schema(["processing", "succeeded", "errored", "canceled", "expired"]),
    created_at={"type": "string", "format": "date-time"},
    expires_at={"type": "string", "format": "date-time"},
    results_url=nullable("string"),
)


def paths() -> Json:
    """Return the operations of each path."""
    return _responses() | _conversations() | _files() | _batches() | _message_batches()


def _responses() -> Json:
    response = json_answer(object_schema(["id", "object", "status", "output"], object={"const": "response"}))
    here, one = [parameter("path", "response")], "/v1/responses/{response}"
    return {
        one: {
            "get": operation("Show a stored response", response) | {"parameters": here},
            "delete": operation("Delete a response", json_answer(object_schema(["id", "deleted"])))
            | {"parameters": here},
        },
        f"{one}/cancel": {"post": operation("Cancel a background response", response) | {"parameters": here}},
        f"{one}/input_items": {
            "get": operation(
                "List the input items of a response", json_answer(list_schema({"type": "object"}))
            )
            | {"parameters": [*here, *_page(100)]}
        },
    }


def _conversations() -> Json:
    conversation = json_answer(
        object_schema(["id", "object", "created_at", "metadata"], object={"const": "conversation"})
    )
    item, items = json_answer(object_schema(["id", "type"])), json_answer(list_schema({"type": "object"}))
    given = {"type": "array", "items": {"type": "object"}, "maxItems": ADDED_MAX}
    metadata = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
    here, one = [parameter("path", "conversation")], "/v1/conversations/{conversation}"
    there = [*here, parameter("path", "item")]

    def body(required: list[str], **fields: Json) -> Json:
        schema = object_schema(required, **fields)
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    return {
        "/v1/conversations": {
            "post": operation("Create a conversation", conversation)
            | body([], items={**given, "type": ["array", "null"]}, metadata=metadata)
        },
        one: {
            "get": operation("Show a conversation", conversation) | {"parameters": here},
            "post": operation("Replace the metadata of a conversation", conversation)
            | {"parameters": here}
            | body([], metadata=metadata),
            "delete": operation("Delete a conversation", json_answer(object_schema(["id", "deleted"])))
            | {"parameters": here},
        },
        f"{one}/items": {
            "get": operation("List the items of a conversation", items)
            | {"parameters": [*here, *_page(100)]},
            "post": operation("Add items to a conversation", items)
            | {"parameters": here}
            | body(["items"], items={**given, "minItems": 1}),
        },
        f"{one}/items/{{item}}": {
            "get": operation("Show an item of a conversation", item) | {"parameters": there},
            "delete": operation("Delete an item of a conversation", conversation) | {"parameters": there},
        },
    }


def _files() -> Json:
    form = object_schema(
        ["file", "purpose"],
        file={"type": "string", "contentMediaType": "application/octet-stream"},
        purpose={"enum": list(PURPOSES)},
    )
    here, one = [parameter("path", "file")], "/v1/files/{file}"
    content = {"description": "The content", "content": {"application/octet-stream": {}}}
    return {
        "/v1/files": {
            "get": operation("List files", json_answer(list_schema(FILE)))
            | {"parameters": [*_page(10_000), parameter("query", "purpose")]},
            "post": operation("Upload a file", json_answer(FILE)) | form_body(form),
        },
        one: {
            "get": operation("Show a file", json_answer(FILE)) | {"parameters": here},
            "delete": operation("Delete a file", json_answer(object_schema(["id", "deleted"])))
            | {"parameters": here},
        },
        f"{one}/content": {
            "get": operation("Download the content of a file", content) | {"parameters": here}
        },
    }


def _batches() -> Json:
    schema = object_schema(
        ["input_file_id", "endpoint", "completion_window"],
        input_file_id={"type": "string"},
        endpoint={"enum": sorted(SURFACES)},
        completion_window={"type": "string"},
        metadata={"type": ["object", "null"], "additionalProperties": {"type": "string"}},
    )
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    here, one = [parameter("path", "batch")], "/v1/batches/{batch}"
    return {
        "/v1/batches": {
            "get": operation("List batches", json_answer(list_schema(BATCH))) | {"parameters": _page(100)},
            "post": operation("Create a batch of requests", json_answer(BATCH)) | {"requestBody": body},
        },
        one: {"get": operation("Show a batch", json_answer(BATCH)) | {"parameters": here}},
        f"{one}/cancel": {"post": operation("Cancel a batch", json_answer(BATCH)) | {"parameters": here}},
    }


def _message_batches() -> Json:
    request = object_schema(
        ["custom_id", "params"],
        custom_id={"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        params={"type": "object"},
    )
    schema = object_schema(["requests"], requests={"type": "array", "minItems": 1, "items": request})
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    here, one = [parameter("path", "batch")], "/v1/messages/batches/{batch}"
    page = [
        parameter("query", "limit", type="integer", minimum=1, maximum=message_batches.BATCHES_MAX),
        parameter("query", "after_id"),
        parameter("query", "before_id"),
    ]
    found = object_schema(["data", "has_more"], data={"type": "array", "items": MESSAGE_BATCH})
    results = {"description": "A line for each request", "content": {"application/x-jsonl": {}}}

    def on_batch(summary: str, answer: Json) -> Json:
        return operation(summary, answer, anthropic_errors=True) | {"parameters": here}

    return {
        "/v1/messages/batches": {
            "get": operation("List message batches", json_answer(found), anthropic_errors=True)
            | {"parameters": page},
            "post": operation("Create a message batch", json_answer(MESSAGE_BATCH), anthropic_errors=True)
            | {"requestBody": body},
        },
        one: {
            "get": on_batch("Show a message batch", json_answer(MESSAGE_BATCH)),
            "delete": on_batch(
                "Delete a message batch that has ended", json_answer(object_schema(["id", "type"]))
            ),
        },
        f"{one}/cancel": {"post": on_batch("Cancel a message batch", json_answer(MESSAGE_BATCH))},
        f"{one}/results": {"get": on_batch("Download the results of a message batch", results)},
    }


def _page(limit_max: int) -> list[Json]:
    return [
        parameter("query", "limit", type="integer", minimum=1, maximum=limit_max),
        parameter("query", "order", enum=["asc", "desc"]),
        parameter("query", "after"),
    ]
