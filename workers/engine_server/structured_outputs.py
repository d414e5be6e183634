"""The grammar that a request asks its answer to keep to: one value, whichever of the engines' fields it came in.

OpenAI    response_format: json_schema | json_object
SGLang    json_schema, regex, ebnf
vLLM      structured_outputs: {json | regex | choice | grammar | json_object}, and the older guided_*
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from workers.engine.grammar.grammar import Grammar, GrammarKind
from workers.engine_server.errors import bad_request
from workers.engine_server.requests import GenerationBody, ResponseFormat, StructuredOutputs

_ANY_OBJECT = {"type": "object"}

RequestedGrammar = tuple[str, Grammar]
"""The field, and what it asks for."""


def grammar_of(body: GenerationBody) -> RequestedGrammar | None:
    """What the request asks for, and in which field; ApiError when it asks twice or in an unknown way."""
    asked = [*_of_openai(body.response_format), *_of_vllm(body.structured_outputs), *_of_fields(body)]
    if len(asked) > 1:
        raise bad_request(f"{asked[0][0]} and {asked[1][0]} exclude each other.", param=asked[1][0])
    return asked[0] if asked else None


def _of_openai(form: ResponseFormat | None) -> Iterator[RequestedGrammar]:
    if form is None or form.type == "text":
        return
    if form.type == "json_object":
        yield "response_format", _schema(_ANY_OBJECT)
    elif form.type != "json_schema":
        raise bad_request(
            'response_format.type is "text", "json_object" or "json_schema".', param="response_format.type"
        )
    elif form.json_schema is None or form.json_schema.schema is None:
        raise bad_request(
            "response_format.json_schema.schema is missing.", param="response_format.json_schema"
        )
    else:
        yield "response_format", _schema(form.json_schema.schema)


def _of_vllm(asked: StructuredOutputs | None) -> Iterator[RequestedGrammar]:
    if asked is None:
        return
    if asked.structural_tag is not None:
        raise bad_request(
            "structured_outputs.structural_tag is not supported by this worker.",
            param="structured_outputs.structural_tag",
            code="unsupported_parameter",
        )
    found = {
        "json": asked.json,
        "regex": asked.regex,
        "choice": asked.choice,
        "grammar": asked.grammar,
        "json_object": _ANY_OBJECT if asked.json_object else None,
    }
    for name, value in found.items():
        if value is not None:
            field = f"structured_outputs.{name}"
            yield field, _of_name(field, name, value)


def _of_fields(body: GenerationBody) -> Iterator[RequestedGrammar]:
    fields: Mapping[str, tuple[str, Any]] = {
        "json_schema": ("json", body.json_schema),
        "regex": ("regex", body.regex),
        "ebnf": ("grammar", body.ebnf),
        "guided_json": ("json", body.guided_json),
        "guided_regex": ("regex", body.guided_regex),
        "guided_choice": ("choice", body.guided_choice),
        "guided_grammar": ("grammar", body.guided_grammar),
    }
    for field, (name, value) in fields.items():
        # SGLang's clients send an empty text for nothing.
        if value is not None and value != "":
            yield field, _of_name(field, name, value)


def _of_name(field: str, name: str, value: Any) -> Grammar:
    if name == "regex":
        return Grammar(kind=GrammarKind.REGEX, text=value)
    if name == "grammar":
        return Grammar(kind=GrammarKind.GRAMMAR, text=value)
    if name == "choice":
        if not value:
            raise bad_request("There must be at least one choice.", param=field)
        return Grammar(kind=GrammarKind.LARK, text="start: " + " | ".join(map(json.dumps, value)))
    return _schema(value)


def _schema(value: str | Mapping[str, Any]) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=value if isinstance(value, str) else json.dumps(value))
