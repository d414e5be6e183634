"""langchain-openai under LangChain's own integration tests, against a gateway with real workers behind it."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.integration.conftest import checkpoint, embedded, embedded_pair, model_settings  # noqa: F401

PYTHON = Path(__file__).parents[2] / ".tools" / "sdks" / "langchain" / "bin" / "python"

NEED_SENSE = (
    *("test_tool_calling", "test_bind_runnables_as_tools", "test_tool_choice", "test_unicode_tool_call"),
    *("test_structured_output", "test_agent_loop"),
)
"""They ask what a model of random weights does not know: which tool to choose, what to put into it, when to end."""

OPTIONS = (
    *("-q", "-rf", "--tb=line", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull),
    # One loop for all: the client keeps its connections.
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"),
    *("-k", " and ".join(f"not {name}" for name in NEED_SENSE)),
)


async def test_its_chat_model_tests_pass(gateway, embedded, model_settings):  # noqa: F811
    if not PYTHON.exists():
        pytest.skip("langchain-openai is not installed; tests/sdks/install says why")
    async with gateway(*embedded, kind="embedded", **model_settings) as running:
        process = await asyncio.create_subprocess_exec(
            *(PYTHON, "-m", "pytest", *OPTIONS),
            str(Path(__file__).with_name("langchain_chat.py")),
            env={
                **os.environ,
                "GATEWAY_URL": f"{running.url}/v1",
                "GATEWAY_KEY": running.keys["acme"].text,
                "PYTHONPATH": "",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 800)
    said = output.decode()
    print(said)
    assert process.returncode == 0, said[said.rfind("short test summary") :]
    assert int(re.search(r"(\d+) passed", said)[1]) >= 18
