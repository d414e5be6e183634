"""The tests that the openai SDK is developed with, against a gateway instead of OpenAI's mock."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.sdks.complete_worker import CompleteWorker

TOOLS = Path(__file__).parents[2] / ".tools" / "sdks"
PYTHON = TOOLS / "own" / "bin" / "python"
FILES = ("chat/test_completions.py", "test_completions.py", "test_embeddings.py", "test_models.py")
CHOSEN = "create or (Models and list)"
"""Others need ids that exist. So do those of responses, which name no model either: see responses_client.py."""


async def test_its_own_tests_of_creating_and_listing_pass(gateway):
    sources = sorted((TOOLS / "src").glob("openai-*/tests"))
    if not sources or not PYTHON.exists():
        pytest.skip("the SDK's sources are not there; tests/sdks/install says why")
    async with CompleteWorker() as worker, gateway(worker, kind="openai", tenants={}) as running:
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
    assert int(re.search(r"(\d+) passed", said)[1]) >= 115
