"""The official anthropic SDK, unchanged, against a running gateway with real workers behind it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import MODEL
from tests.integration.files.test_files_api import with_database

INSTALLED = Path(__file__).parents[3] / ".tools" / "anthropic"


async def test_the_sdk_works_unchanged(gateway, embedded, model_settings):
    if not (INSTALLED / "anthropic").is_dir():
        pytest.skip("the anthropic SDK is not installed; `make test` puts it into .tools/anthropic")
    async with gateway(*embedded, kind="embedded", **model_settings, **with_database()) as running:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("anthropic_client.py")),
            *(running.url, running.keys["acme"].text, MODEL),
            env={**os.environ, "PYTHONPATH": str(INSTALLED)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, errors.decode()
    assert output.decode().startswith("2.")
