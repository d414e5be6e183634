"""The tests that the openai SDK is developed with, against a gateway instead of OpenAI's mock."""

import asyncio
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sdks.complete_worker import CompleteWorker

TOOLS = Path(__file__).parents[2] / ".tools" / "sdks"
PYTHON = TOOLS / "own" / "bin" / "python"
FILES = (
    *("chat/test_completions.py", "test_completions.py", "test_embeddings.py", "test_models.py"),
    *("test_files.py", "test_batches.py", "audio/test_transcriptions.py", "audio/test_translations.py"),
)
CHOSEN = (
    "(create or (Models and list) or ((Files or Batches) and list and not all_params))"
    " and not (Transcriptions and all_params)"
)
"""Others need ids that exist, or ask for pages after what does not. So do those of responses, which name no model
either: see responses_client.py. Those of transcriptions with all parameters send "string" as the recording of a
speaker; the gateway takes data: URLs only, as the reference of OpenAI asks for."""


async def keep_input_file(running):
    """The file that the tests of batches name."""
    store = running.here.gateway.records.tenant_files.store
    file = await store.begin("input_file_id", "default")
    kept = replace(file, purpose="batch", name="input.jsonl", expires=time.time() + 3600)
    await store.complete(kept, tenant_bytes_max=1)


async def test_its_own_tests_of_creating_and_listing_pass(gateway):
    sources = sorted((TOOLS / "src").glob("openai-*/tests"))
    if not sources or not PYTHON.exists():
        pytest.skip("the SDK's sources are not there; tests/sdks/install says why")
    database = {"database.url": "sqlite:///radixgate.db"}  # of files and batches
    async with CompleteWorker() as worker, gateway(worker, kind="openai", tenants={}, **database) as running:
        await keep_input_file(running)
        process = await asyncio.create_subprocess_exec(
            *(
                PYTHON,
                "-m",
                "pytest",
                "-q",
                "-rf",
                "-p",
                "no:cacheprovider",
                "-k",
                CHOSEN,
                "--tb=line",
                "-n0",
            ),
            *(f"tests/api_resources/{name}" for name in FILES),
            cwd=sources[-1].parent,
            env={**os.environ, "TEST_API_BASE_URL": f"{running.url}/v1", "PYTHONPATH": ""},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 600)
    said = output.decode()
    print(said)
    assert process.returncode == 0, said[said.rfind("short test summary") :]
    assert int(re.search(r"(\d+) passed", said)[1]) >= 230
