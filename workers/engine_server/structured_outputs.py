"""The grammar that constrains a request's answer: one value, whichever of the engines' fields it came in.

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
"""The name of the request's field, and the grammar in it."""


def requested_grammar(body: GenerationBody) -> RequestedGrammar | None:
    """Return the grammar of a request, and its field; None where there is none.

    Raises:
        ApiError: Two fields contain a grammar, or one has an unknown form of it.
    """
    found = [
        *_from_response_format(body.response_format),
        *_from_structured_outputs(body.structured_outputs),
        *_from_single_fields(body),
    ]
    if len(found) > 1:
        raise bad_request(f"{found[0][0]} and {found[1][0]} exclude each other.", param=found[1][0])
    return found[0] if found else None


def _from_response_format(response_format: ResponseFormat | None) -> Iterator[RequestedGrammar]:
    if response_format is None or response_format.type == "text":
        return
    if response_format.type == "json_object":
        yield "response_format", _schema(_ANY_OBJECT)
    elif response_format.type != "json_schema":
        raise bad_request(
            'response_format.type is "text", "json_object" or "json_schema".', param="response_format.type"
        )
    elif response_format.json_schema is None or response_format.json_schema.schema is None:
        raise bad_request(
            "response_format.json_schema.schema is missing.", param="response_format.json_schema"
        )
    else:
        yield "response_format", _schema(response_format.json_schema.schema)


def _from_structured_outputs(outputs: StructuredOutputs | None) -> Iterator[RequestedGrammar]:
    if outputs is None:
        return
    if outputs.structural_tag is not None:
        raise bad_request(
            "structured_outputs.structural_tag is not supported by this worker.",
            param="structured_outputs.structural_tag",
            code="unsupported_parameter",
        )
    found = {
        "json": outputs.json,
        "regex": outputs.regex,
        "choice": outputs.choice,
        "grammar": outputs.grammar,
        "json_object": _ANY_OBJECT if outputs.json_object else None,
    }
    for name, value in found.items():
        if value is not None:
            field = f"structured_outputs.{name}"
            yield field, _grammar(field, name, value)


def _from_single_fields(body: GenerationBody) -> Iterator[RequestedGrammar]:
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
        # SGLang's clients send an empty text for no grammar.
        if value is not None and value != "":
            yield field, _grammar(field, name, value)


def _grammar(field: str, name: str, value: Any) -> Grammar:
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
