"""The OpenAPI 3.1 document of the tenants' API, made of the types that read its bodies. Served at /openapi.json.

Chat completions, completions and embeddings say what the gateway itself looks at; every further field passes to the
worker. Answers of workers pass as well, so their schemas promise no more than the gateway does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.request import FORMS, Surface
from gateway.web.anthropic import wire as anthropic
from gateway.web.openai import inference_requests
from gateway.web.openapi import stored_objects_paths
from gateway.web.openapi.descriptions import (
    ANTHROPIC_ERROR,
    ERROR,
    SPEECH_FORM,
    described,
    form_body,
    json_body,
    operation,
    parameter,
    said,
)
from gateway.web.responses import wire as responses

Json = dict[str, Any]

_TITLES = {
    Surface.CHAT: "A conversation goes on",
    Surface.COMPLETIONS: "A text goes on",
    Surface.MESSAGES: "A conversation goes on (Anthropic)",
    Surface.RESPONSES: "A conversation goes on, and is kept",
    Surface.EMBEDDINGS: "Texts to vectors",
    Surface.RERANK: "Documents by relevance",
    Surface.SCORE: "How well texts fit",
    Surface.MODERATIONS: "What is objectionable",
    Surface.SPEECH: "Text to speech",
    Surface.TRANSCRIPTIONS: "Speech to text",
    Surface.TRANSLATIONS: "Speech to English text",
    Surface.TOKENIZE: "Text to tokens",
    Surface.DETOKENIZE: "Tokens to text",
}
_STREAMED = {Surface.CHAT, Surface.COMPLETIONS, Surface.MESSAGES, Surface.RESPONSES}


def document(version: str) -> Json:
    """The whole document."""
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
    schemas |= {surface: {"$ref": "#/components/schemas/SpeechForm"} for surface in FORMS}
    paths = {f"/v1/{surface.value}": {"post": _inference(surface, schemas[surface])} for surface in _TITLES}
    paths["/v1/messages/count_tokens"] = {
        "post": operation("How many tokens a message's prompt has", _counted(), anthropic_errors=True)
        | json_body(schemas["count_tokens"])
    }
    paths["/v1/responses/input_tokens"] = {
        "post": operation("How many tokens a response's prompt has", _counted())
        | json_body(schemas[Surface.RESPONSES])
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radixgate",
            "version": version,
            "description": "OpenAI's and Anthropic's APIs, also without /v1.",
        },
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths | _lists() | stored_objects_paths.paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _bodies() -> Mapping[Surface | str, Any]:
    """What reads the body of each API."""
    return {
        **{surface: inference_requests.body_type(surface) for surface in _TITLES if surface not in FORMS},
        Surface.MESSAGES: anthropic.MessagesBody,
        Surface.RESPONSES: responses.ResponsesBody,
        "count_tokens": anthropic.CountTokensBody,
    }


def _inference(surface: Surface, body: Json) -> Json:
    content: Json = {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}}
    if surface in _STREAMED:
        # OpenAPI 3.1 has no way to say what an event is; whoever checks one against a text is wrong.
        content["text/event-stream"] = {}
    if surface is Surface.SPEECH:
        content = {"audio/*": {}, **content}
    if surface in FORMS:
        content = {"text/*": {}, **content}
    answer = {"description": "The answer", "content": content}
    asked = form_body(body) if surface in FORMS else json_body(body)
    return operation(_TITLES[surface], answer, anthropic_errors=surface is Surface.MESSAGES) | asked


def _lists() -> Json:
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
    every = described(["object", "data"], object={"const": "list"}, data={"type": "array", "items": model})
    return {
        "/v1/models": {"get": operation("Models that this key may use", said(every))},
        "/v1/models/{model}": {
            "get": operation("One of them", said(model)) | {"parameters": [parameter("path", "model")]}
        },
    }


def _counted() -> Json:
    return said(described(["input_tokens"], input_tokens={"type": "integer", "minimum": 0}))
