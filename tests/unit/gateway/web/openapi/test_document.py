"""The OpenAPI document: every API is in it, its references lead somewhere, its schemas are schemas."""

from jsonschema import Draft202012Validator

from gateway.domain.request import Surface
from gateway.web.openapi.document import tenant_api_document
from tests.fakes.scripted_worker import ScriptedWorker


def references(part):
    """Every $ref in there."""
    if isinstance(part, dict):
        found = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return found + [ref for value in part.values() for ref in references(value)]
    return [ref for value in part for ref in references(value)] if isinstance(part, list) else []


def test_every_api_is_described_with_its_body():
    paths = tenant_api_document("1")["paths"]
    for surface in Surface:
        assert paths[f"/v1/{surface.value}"]["post"]["requestBody"]["required"]
    assert set(paths["/v1/responses/{response}"]) == {"get", "delete"}


def test_references_lead_somewhere_and_schemas_are_schemas():
    whole = tenant_api_document("1")
    schemas = whole["components"]["schemas"]
    assert {ref.rsplit("/", 1)[1] for ref in references(whole)} <= set(schemas)
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


def test_what_a_chat_needs_is_required():
    assert tenant_api_document("1")["components"]["schemas"]["ChatBody"]["required"] == ["model", "messages"]


async def test_the_document_is_served_without_a_key(gateway):
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.http.get(f"{running.url}/openapi.json") as response:
            assert (await response.json())["openapi"] == "3.1.0"
