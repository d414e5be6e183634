"""The OpenAPI 3.1 document of the tenants' API, made of the types that read its bodies. Served at /openapi.json.

Chat completions, completions and embeddings say what the gateway itself looks at; every further field passes to the
worker. Answers of workers pass as well, so their schemas promise no more than the gateway does.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.request import Surface
from gateway.web import openai
from gateway.web.anthropic import wire as anthropic
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
    Surface.TOKENIZE: "Text to tokens",
    Surface.DETOKENIZE: "Tokens to text",
}
_STREAMED = {Surface.CHAT, Surface.COMPLETIONS, Surface.MESSAGES, Surface.RESPONSES}
_REFUSALS = {
    "400": "The request cannot be read, or not be done",
    "401": "No such key",
    "403": "Not for this key",
    "404": "No such model, response or address",
    "405": "Another method",
    "408": "The body took too long",
    "413": "The body is too large",
    "415": "The body is encoded",
    "422": "The worker cannot do it",
    "429": "A limit is reached; `retry-after` says for how long",
    "500": "The gateway has failed",
    "502": "The worker has failed",
    "503": "No worker, or no room; try again",
    "504": "The worker is too slow",
}


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
    components |= {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR, "Answer": {"type": "object"}}
    paths = {f"/v1/{surface.value}": {"post": _inference(surface, schemas[surface])} for surface in _TITLES}
    paths["/v1/messages/count_tokens"] = {
        "post": _operation("How many tokens a message's prompt has", _counted(), anthropic_errors=True)
        | _body(schemas["count_tokens"])
    }
    paths["/v1/responses/input_tokens"] = {
        "post": _operation("How many tokens a response's prompt has", _counted())
        | _body(schemas[Surface.RESPONSES])
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radixgate",
            "version": version,
            "description": "OpenAI's and Anthropic's APIs, also without /v1.",
        },
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths | _lists() | _stored(),
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
        **{surface: openai.body_type(surface) for surface in _TITLES},
        Surface.MESSAGES: anthropic.MessagesBody,
        Surface.RESPONSES: responses.Body,
        "count_tokens": anthropic.CountedBody,
    }


def _inference(surface: Surface, body: Json) -> Json:
    content: Json = {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}}
    if surface in _STREAMED:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if surface is Surface.SPEECH:
        content = {"audio/*": {}, **content}
    answer = {"description": "The answer", "content": content}
    return _operation(_TITLES[surface], answer, anthropic_errors=surface is Surface.MESSAGES) | _body(body)


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
    every = _object(["object", "data"], object={"const": "list"}, data={"type": "array", "items": model})
    return {
        "/v1/models": {"get": _operation("Models that this key may use", _json(every))},
        "/v1/models/{model}": {
            "get": _operation("One of them", _json(model)) | {"parameters": [_in("path", "model")]}
        },
    }


def _stored() -> Json:
    response = _object(["id", "object", "status", "output"], object={"const": "response"})
    items = _object(["object", "data", "has_more"], data={"type": "array", "items": {"type": "object"}})
    here = [_in("path", "response")]
    page = [
        _in("query", "limit", type="integer", minimum=1, maximum=100),
        _in("query", "order", enum=["asc", "desc"]),
        _in("query", "after"),
    ]
    one = "/v1/responses/{response}"
    return {
        one: {
            "get": _operation("A response that is kept", _json(response)) | {"parameters": here},
            "delete": _operation("Forgets it", _json(_object(["id", "deleted"]))) | {"parameters": here},
        },
        f"{one}/cancel": {
            "post": _operation("Ends one that runs in the background", _json(response)) | {"parameters": here}
        },
        f"{one}/input_items": {
            "get": _operation("What it was asked with", _json(items)) | {"parameters": [*here, *page]}
        },
    }


def _operation(summary: str, answer: Json, *, anthropic_errors: bool = False) -> Json:
    name = "AnthropicError" if anthropic_errors else "Error"
    refusal = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    refusals = {code: {"description": text, "content": refusal} for code, text in _REFUSALS.items()}
    return {"summary": summary, "responses": {"200": answer, **refusals}}


def _body(schema: Json) -> Json:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _json(schema: Json) -> Json:
    return {"description": "The answer", "content": {"application/json": {"schema": schema}}}


def _counted() -> Json:
    return _json(_object(["input_tokens"], input_tokens={"type": "integer", "minimum": 0}))


def _object(required: Iterable[str], **properties: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def _in(where: str, name: str, **schema: Any) -> Json:
    return {
        "in": where,
        "name": name,
        "required": where == "path",
        "schema": {"type": "string", **({"minLength": 1} if where == "path" else {}), **schema},
    }


_ERROR = _object(
    ["error"],
    error=_object(
        ["message", "type", "param", "code"],
        message={"type": "string"},
        type={"type": "string"},
        param={"type": ["string", "null"]},
        code={"type": ["string", "null"]},
    ),
)
_ANTHROPIC_ERROR = _object(
    ["type", "error", "request_id"],
    type={"const": "error"},
    error=_object(["type", "message"], type={"type": "string"}, message={"type": "string"}),
    request_id={"type": "string"},
)
