"""smg's own tests of the client APIs pass, but for those that docs/pages/reference/compatibility.md lists.

Their sources are in no package: RADIXGATE_TEST_SMG names a checkout of lightseekorg/smg, with a virtual environment
`venv` in it that has what e2e_test/pyproject.toml names. Without it the test is skipped.

Each test may pass with one of two workers: one that obeys the prompt, or the embedded engine with random weights,
which counts, stops and samples as engines do.
"""

import asyncio
import json
import os
import re
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.integration.conftest import EmbeddedWorker
from tests.sdks.smg.willing_worker import WillingWorker
from workers.engine import tiny_checkpoint

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "pages" / "reference" / "compatibility.md"
SOURCES = Path(os.environ.get("RADIXGATE_TEST_SMG", ROOT / ".tools" / "smg"))
PYTHON = SOURCES / "venv" / "bin" / "python"
APIS = ("chat_completions", "completions", "messages", "responses")
ENGINE_TESTS = (
    *("completions", "chat_completions/test_openai_server.py", "chat_completions/test_validation.py"),
    "chat_completions/test_function_calling.py::TestOpenAIServerFunctionCalling",
    *(
        f"chat_completions/test_function_calling.py::TestToolChoice{model}::test_invalid_tool_missing_name"
        for model in ("Llama", "Qwen", "Mistral")
    ),
)
"""The tests that need little but an engine."""
CLOUD_MODELS = ("gpt-5-nano", "grok-4-fast", "claude-sonnet-4-6")
RESULT = re.compile(r"^(PASSED|FAILED|ERROR) \S+?::(\w+)::(\w+)", re.M)
ROW = re.compile(r"^\| (`.*`) \| .* \|$", re.M)


async def results(running, tests):
    """Run tests of smg against a gateway, and return the names of those that passed, and of all."""
    paths = (Path(__file__).parent, SOURCES / "bindings" / "python" / "src")
    process = await asyncio.create_subprocess_exec(
        *(PYTHON, "-m", "pytest", "-q", "-rpfE", "--tb=line", "-p", "no:cacheprovider", "-p", "smg_backend"),
        *("-k", "not smg-", *tests),
        cwd=SOURCES / "e2e_test",
        env={**os.environ, "GATEWAY_URL": running.url, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 600)
    print(output.decode()[-5000:])
    found = [(result, f"{group}.{test}") for result, group, test in RESULT.findall(output.decode())]
    # A test with parameters has passed if it passed with all of them.
    failed = {name for result, name in found if result != "PASSED"}
    every = {name for _, name in found}
    return every - failed, every


@asynccontextmanager
async def with_willing_worker(gateway):
    specifications = (SOURCES / "e2e_test" / "infra" / "model_specs.py").read_text(encoding="utf-8")
    names = sorted({*re.findall(r'"([\w.-]+/[\w.-]+)"', specifications), *CLOUD_MODELS})
    models = json.dumps([{"name": name, "context_length": 100_000} for name in names])
    database = {"database.url": "sqlite:///radixgate.db"}
    async with (
        WillingWorker(models=names) as worker,
        gateway(worker, kind="openai", models=models, tenants={}, **database) as running,
    ):
        yield running


@asynccontextmanager
async def with_embedded_engine(gateway, checkpoint, log):
    worker = EmbeddedWorker(checkpoint, log)
    worker.start()
    models = json.dumps([{"name": "tiny", "aliases": ["*"]}])
    try:
        async with gateway(worker, kind="embedded", models=models, tenants={}) as running:
            yield running
    finally:
        worker.kill()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint.build(tmp_path_factory.mktemp("model") / "tiny", hidden=64, context=768)


@pytest.mark.timeout(1200)
async def test_its_own_tests_pass_but_for_those_that_are_listed(gateway, checkpoint, tmp_path):
    if not PYTHON.exists():
        pytest.skip("RADIXGATE_TEST_SMG does not name the sources of smg")
    async with with_willing_worker(gateway) as running:
        passed, every = await results(running, APIS)
    async with with_embedded_engine(gateway, checkpoint, tmp_path / "engine.log") as running:
        also_passed, _ = await results(running, ENGINE_TESTS)
    failed = every - passed - also_passed
    patterns = {
        pattern
        for row in ROW.findall(PAGE.read_text(encoding="utf-8"))
        for pattern in re.findall(r"`(.*?)`", row)
    }
    listed = {pattern: {name for name in every if fnmatchcase(name, pattern)} for pattern in patterns}
    print(f"{len(every) - len(failed)} of {len(every)} passed")
    assert failed - set().union(*listed.values()) == set()
    assert {pattern: names - failed for pattern, names in listed.items() if not names or names - failed} == {}
