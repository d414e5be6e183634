"""The OpenAPI 3.1 document of the admin API, made from its operations."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.adminapi.operation import Operation
from gateway.adminapi.problems import TITLES
from gateway.settings.types import Moment, Network, Secret

BASE = "/admin/v1"
ALWAYS_POSSIBLE = (401, 403, 429, 503)


def admin_api_document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of the given operations."""
    types = {
        each for operation in operations for each in (operation.response_type, operation.request_type) if each
    }
    ordered = sorted(types, key=lambda kind: str(kind.__name__))
    _, schemas = msgspec.json.schema_components(
        ordered, schema_hook=_schema, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(BASE + operation.path, {})[operation.method.lower()] = _operation(operation)
    problem = {"$ref": "#/components/schemas/Problem"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "radixgate admin API", "version": version, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"operator": []}],
        "paths": paths,
        "components": {
            "schemas": {**_ecma_patterns(schemas), "Problem": PROBLEM},
            "responses": {
                f"Problem{status}": {
                    "description": title,
                    "content": {"application/problem+json": {"schema": problem}},
                }
                for status, title in TITLES.items()
            },
            "securitySchemes": {"operator": {"type": "http", "scheme": "bearer"}},
        },
    }


PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
    },
}


def _ecma_patterns(schema: Any) -> Any:
    """Return a schema with patterns as JSON Schema (ECMA-262) writes them, with `$` as the end of the text."""
    if isinstance(schema, list):
        return [_ecma_patterns(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: each.replace(r"\Z", "$")
        if name == "pattern" and isinstance(each, str)
        else _ecma_patterns(each)
        for name, each in schema.items()
    }


def _operation(operation: Operation) -> dict[str, Any]:
    statuses = [operation.status] if operation.method != "PUT" else [200, 201]
    problems = {*ALWAYS_POSSIBLE, *((400, 408, 409, 413, 415) if operation.request_type else (400,))}
    if "{" in operation.path:
        problems.add(404)
    if operation.conditional:
        problems.add(412)
    schema = {"$ref": f"#/components/schemas/{operation.response_type.__name__}"}
    body = {"application/json": {"schema": schema}}
    found: dict[str, Any] = {
        "summary": operation.summary,
        "description": f"Needs the role {operation.role}.",
        "operationId": _identity(operation),
        "parameters": _parameters(operation),
        "responses": {
            **{str(status): {"description": "Done.", "content": body} for status in statuses},
            **{str(s): {"$ref": f"#/components/responses/Problem{s}"} for s in sorted(problems)},
        },
    }
    if operation.request_type:
        taken = {"$ref": f"#/components/schemas/{operation.request_type.__name__}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": taken}}}
    return found


def _identity(operation: Operation) -> str:
    words = re.findall(r"[a-z]+", f"{operation.method.lower()} {operation.path}")
    return "_".join(words)


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    in_query = [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in (operation.query_parameters or {}).items()
    ]
    in_headers = [
        {"name": name, "in": "header", "schema": {"type": "string"}}
        for name in (("If-Match", "If-None-Match") if operation.conditional else ())
    ]
    return [*in_path, *in_query, *in_headers]


def _schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, Moment | Network | Secret):
        return {"type": "string"}
    raise NotImplementedError
