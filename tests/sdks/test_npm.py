"""The openai package of npm, unchanged, against a gateway with real workers behind it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import (  # noqa: F401
    MODEL,
    checkpoint,
    embedded,
    embedded_pair,
    model_settings,
)

INSTALLED = Path(__file__).parents[2] / ".tools" / "sdks" / "js"


async def test_it_works_unchanged(gateway, embedded, model_settings, tmp_path):  # noqa: F811
    if shutil.which("node") is None or not (INSTALLED / "node_modules" / "openai").is_dir():
        pytest.skip("npm's openai is not installed; tests/sdks/install says why")
    # Node looks for packages beside the script.
    (tmp_path / "node_modules").symlink_to(INSTALLED / "node_modules")
    script = shutil.copy(Path(__file__).with_name("client.mjs"), tmp_path)
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        process = await asyncio.create_subprocess_exec(
            *("node", script, f"{running.url}/v1", running.keys["acme"].text, MODEL),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == 0, errors.decode()
        await running.until(lambda: running.idle)
    assert output.decode().strip() == "all is well"
