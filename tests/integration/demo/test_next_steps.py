"""The requests that the demo prints at its end work as they are printed, with the official SDKs."""

import asyncio
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from gateway.demo.next_steps import next_steps
from tests.integration.conftest import MODEL

TOOLS = Path(__file__).parents[3] / ".tools"
SDKS = {"openai": "openai-3", "anthropic": "anthropic"}
"""The folder of each SDK below .tools."""


@pytest.mark.parametrize("sdk", SDKS)
async def test_the_example_of_an_sdk_prints_an_answer(gateway, embedded, model_settings, sdk):
    installed = TOOLS / SDKS[sdk]
    if not (installed / sdk).is_dir():
        pytest.skip(f"{sdk} is not installed; `make test` puts it into {installed}")
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        text = next_steps(
            url=running.url,
            admin_url=running.admin,
            settings_file=Path("gateway.yaml"),
            key=running.keys["acme"].text,
            model=MODEL,
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", example_of(text, sdk)),
            env={**os.environ, "PYTHONPATH": str(installed)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors.decode()
    assert output.decode().strip()


def example_of(text, sdk):
    """Return the Python code for this SDK: from its import to the next one."""
    code = re.search(rf"^  from {sdk} import .*?(?=^  from |\Z)", text, re.M | re.S)[0]
    return textwrap.dedent(code)
