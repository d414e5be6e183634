"""schemathesis on the published OpenAPI document: no request that it can draw makes the gateway fail, or answer
otherwise than the document says."""

import asyncio
import json
import sys

from tests.sdks.complete_worker import CompleteWorker

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SECONDS = 60


def naming(schema, model):
    """The same document, in which a model's name is one that there is."""
    if isinstance(schema, dict):
        named = {name: naming(value, model) for name, value in schema.items()}
        if isinstance(named.get("properties"), dict) and "model" in named["properties"]:
            named["properties"]["model"] = {"type": "string", "enum": [model]}
        return named
    return [naming(value, model) for value in schema] if isinstance(schema, list) else schema


async def test_no_request_that_the_document_allows_or_forbids_is_answered_wrongly(gateway, tmp_path):
    async with CompleteWorker() as worker, gateway(worker) as running:
        async with running.http.get(f"{running.url}/openapi.json") as response:
            document = await response.json()
        file = tmp_path / "openapi.json"
        file.write_text(json.dumps(naming(document, "model")))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", running.url),
            *("-H", f"Authorization: {running.headers()['Authorization']}", "--checks", CHECKS),
            *("--phases", "coverage,fuzzing", "--max-time", str(SECONDS), "--warnings", "off", "-n", "30"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS * 8)
        assert running.idle
    assert process.returncode == 0, output.decode()[-6000:]
