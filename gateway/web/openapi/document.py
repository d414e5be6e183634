"""The OpenAPI 3.1 document of the tenants' API, made from the structs that decode its bodies: GET /openapi.json.

The schemas of inference requests contain the fields that the gateway itself reads; of the other fields a worker
gets those that its kind accepts. Answers of workers also pass through, so their schemas promise only what the
gateway itself does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.request import FORM_SURFACES, Surface
from gateway.web.anthropic import wire as anthropic
from gateway.web.openai.body_fields import body_type
from gateway.web.openapi import stored_objects_paths
from gateway.web.openapi.descriptions import (
    ANTHROPIC_ERROR,
    ERROR,
    SPEECH_FORM,
    form_body,
    json_answer,
    json_body,
    object_schema,
    operation,
    parameter,
)
from gateway.web.responses import wire as responses

Json = dict[str, Any]

_SUMMARIES = {
    Surface.CHAT: "Continue a conversation (chat completion)",
    Surface.COMPLETIONS: "Continue a text (completion)",
    Surface.MESSAGES: "Continue a conversation (Anthropic's Messages API)",
    Surface.RESPONSES: "Continue a conversation, and store it (Responses API)",
    Surface.EMBEDDINGS: "Embed texts",
    Surface.RERANK: "Rank documents by relevance",
    Surface.SCORE: "Score the similarity of texts",
    Surface.MODERATIONS: "Classify objectionable texts",
    Surface.SPEECH: "Speak a text",
    Surface.TRANSCRIPTIONS: "Transcribe speech",
    Surface.TRANSLATIONS: "Translate speech to English text",
    Surface.TOKENIZE: "Tokenize a text",
    Surface.DETOKENIZE: "Detokenize tokens",
}
_STREAMED = {Surface.CHAT, Surface.COMPLETIONS, Surface.MESSAGES, Surface.RESPONSES}


def tenant_api_document(version: str) -> Json:
    """Return the whole document. `version` is the gateway's."""
    bodies = _bodies()
    (*references,), components = msgspec.json.schema_components(
        tuple(bodies.values()), ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(bodies, references, strict=True))
    for surface, required in (
        (Surface.CHAT, ["model", "messages"]),
        (Surface.COMPLETIONS, ["model", "prompt"]),
        (Surface.EMBEDDINGS, ["model"]),
    ):
        components[schemas[surface]["$ref"].rsplit("/", 1)[1]]["required"] = required
    components |= {
        "SpeechForm": SPEECH_FORM,
        "Error": ERROR,
        "AnthropicError": ANTHROPIC_ERROR,
        "Answer": {"type": "object"},
    }
    schemas |= {surface: {"$ref": "#/components/schemas/SpeechForm"} for surface in FORM_SURFACES}
    paths = {
        f"/v1/{surface.value}": {"post": _inference(surface, schemas[surface])} for surface in _SUMMARIES
    }
    paths["/v1/messages/count_tokens"] = {
        "post": operation("Count the tokens of a message's prompt", _token_count(), anthropic_errors=True)
        | json_body(schemas["count_tokens"])
    }
    paths["/v1/responses/input_tokens"] = {
        "post": operation("Count the tokens of a response's prompt", _token_count())
        | json_body(schemas[Surface.RESPONSES])
    }
    paths["/v1/responses/compact"] = {
        "post": operation(
            "Compact a conversation", json_answer(object_schema(["id", "object", "output", "usage"]))
        )
        | json_body(schemas[Surface.RESPONSES])
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radixgate",
            "version": version,
            "description": "OpenAI's and Anthropic's APIs. Every path is also served without /v1.",
        },
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths | _model_paths() | stored_objects_paths.paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _bodies() -> Mapping[Surface | str, Any]:
    """Return the struct that decodes the body of each API."""
    return {
        **{surface: body_type(surface) for surface in _SUMMARIES if surface not in FORM_SURFACES},
        Surface.MESSAGES: anthropic.MessagesBody,
        Surface.RESPONSES: responses.ResponsesBody,
        "count_tokens": anthropic.CountTokensBody,
    }


def _inference(surface: Surface, body: Json) -> Json:
    content: Json = {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}}
    if surface in _STREAMED:
        # OpenAPI 3.1 cannot describe events, and a schema of the stream as one text would be wrong.
        content["text/event-stream"] = {}
    if surface is Surface.SPEECH:
        content = {"audio/*": {}, **content}
    if surface in FORM_SURFACES:
        content = {"text/*": {}, **content}
    answer = {"description": "The answer", "content": content}
    request_body = form_body(body) if surface in FORM_SURFACES else json_body(body)
    return operation(_SUMMARIES[surface], answer, anthropic_errors=surface is Surface.MESSAGES) | request_body


def _model_paths() -> Json:
    model: Json = {
        "type": "object",
        "required": ["id", "object", "created", "owned_by"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "model"},
            "created": {"type": "integer"},
            "owned_by": {"type": "string"},
        },
    }
    models = object_schema(
        ["object", "data"], object={"const": "list"}, data={"type": "array", "items": model}
    )
    return {
        "/v1/models": {"get": operation("List the models that this key may use", json_answer(models))},
        "/v1/models/{model}": {
            "get": operation("Show a model", json_answer(model))
            | {"parameters": [parameter("path", "model")]}
        },
    }


def _token_count() -> Json:
    return json_answer(object_schema(["input_tokens"], input_tokens={"type": "integer", "minimum": 0}))
