"""The official openai SDK, versions 2 and 3, unchanged, against a running gateway with real workers behind it."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.conftest import MODEL

ROOT = Path(__file__).parents[3]


RUN_ALL = "import runpy, sys; [runpy.run_path(each, run_name='__main__') for each in sys.argv[4:]]"
"""Runs scripts in one process: the import of the SDK takes longer than what they do with it."""


async def use_sdk(major: str, scripts: Sequence[str], url: str, key: str) -> None:
    installed = ROOT / ".tools" / f"openai-{major}"
    if not (installed / "openai").is_dir():
        pytest.skip(f"openai {major}.x is not installed; `make test` puts it into .tools/openai-{major}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN_ALL, f"{url}/v1", key, MODEL),
        *(str(Path(__file__).with_name(script)) for script in scripts),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (installed, Path(__file__).parent)))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors.decode()
    versions = output.decode().split()
    assert len(versions) == len(scripts)
    assert all(version.startswith(f"{major}.") for version in versions)


@pytest.mark.parametrize("major", ["2", "3"])
async def test_the_sdk_works_unchanged(gateway, embedded, model_settings, major):
    scripts = ["sdk_client.py", "sdk_tools_client.py", "responses_client.py", "conversations_client.py"]
    database = {"database.url": "sqlite:///radixgate.db"}  # where responses are kept
    async with gateway(*embedded, kind="embedded", **model_settings, **database) as running:
        await use_sdk(major, scripts, running.url, running.keys["acme"].text)


@pytest.mark.parametrize("major", ["2", "3"])
async def test_the_sdk_uses_tools_and_schemas_on_a_worker_alone(embedded, major):
    await use_sdk(major, ["sdk_tools_client.py"], embedded[0].url, "no key needed")
