"""The official openai SDK, versions 2 and 3, unchanged, against a running gateway with real workers behind it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import MODEL

ROOT = Path(__file__).parents[3]


async def use_sdk(major: str, script: str, url: str, key: str) -> None:
    installed = ROOT / ".tools" / f"openai-{major}"
    if not (installed / "openai").is_dir():
        pytest.skip(f"openai {major}.x is not installed; `make test` puts it into .tools/openai-{major}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name(script)),
        f"{url}/v1",
        key,
        MODEL,
        env={**os.environ, "PYTHONPATH": str(installed)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, errors.decode()
    assert output.decode().startswith(f"{major}.")


@pytest.mark.parametrize(
    "script", ["sdk_client.py", "sdk_tools_client.py", "responses_client.py", "conversations_client.py"]
)
@pytest.mark.parametrize("major", ["2", "3"])
async def test_the_sdk_works_unchanged(gateway, embedded, model_settings, major, script):
    database = {"database.url": "sqlite:///radixgate.db"}  # where responses are kept
    async with gateway(*embedded, kind="embedded", **model_settings, **database) as running:
        await use_sdk(major, script, running.url, running.keys["acme"].text)


@pytest.mark.parametrize("major", ["2", "3"])
async def test_the_sdk_uses_tools_and_schemas_on_a_worker_alone(embedded, major):
    await use_sdk(major, "sdk_tools_client.py", embedded[0].url, "no key needed")
