"""Every page of docs/pages/clients: its code is run, with the client that the page is about."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from tests.fakes.obedient_worker import ObedientWorker

ROOT = Path(__file__).parents[3]
INSTALLED = ROOT / ".tools" / "sdks-clients"
PAGES_FOLDER = ROOT / "docs" / "pages" / "clients"
OTHERS = {"index", "open-webui"}
"""Pages without code that ends; see test_open_webui.py."""
PAGES = sorted(page for page in PAGES_FOLDER.glob("*.md") if page.stem not in OTHERS)
BLOCK = re.compile(r"^```(sh|python|js)\n(.*?)^```$", re.M | re.S)
MODEL = "llama-3.1-8b"
MODELS = json.dumps([{"name": MODEL, "aliases": ["claude-*"], "context_length": 200_000}])
DATABASE = {"database.url": "sqlite:///radixgate.db"}
"""Where responses are kept."""


def command_of(language, code, folder, directory):
    """Return the command that runs a block of code."""
    if language == "sh":
        return ["bash", "-e", "-c", code]
    if language == "python":
        return [str(folder / "bin" / "python"), "-c", code]
    if not (directory / "node_modules").exists():
        (directory / "node_modules").symlink_to(folder / "node_modules")
    (directory / "page.mjs").write_text(code)
    return ["node", "page.mjs"]


async def run_code(command, folder, directory):
    """Return what a command prints, in a home directory of its own."""
    home = directory / "home"
    home.mkdir(exist_ok=True)
    bins = f"{folder / 'bin'}:{folder / 'node_modules' / '.bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": bins, "HOME": str(home), "PYTHONPATH": ""}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 300)
    return process.returncode, output.decode()


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
async def test_the_lines_of_a_page_work(gateway, tmp_path, page):
    folder = INSTALLED / page.stem
    if not (folder / ".done").exists():
        pytest.skip(f"{page.stem} is not installed; tests/sdks/clients/install says why")
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    async with (
        ObedientWorker(models=[MODEL]) as worker,
        gateway(worker, kind="openai", models=MODELS, **DATABASE) as running,
    ):
        for language, code in blocks:
            code = code.replace("http://127.0.0.1:8000", running.url)
            # Programs try again for a while where a library reports the error.
            wrong = ("wrong",) if language != "sh" else ()
            for key in (running.keys["acme"].text, *wrong):
                command = command_of(language, code.replace("YOUR_KEY", key), folder, tmp_path)
                status, output = await run_code(command, folder, tmp_path)
                answered = "You said: " in output
                assert answered == (key != "wrong"), (status, output[-2000:])
        await running.until(lambda: running.idle)


TOOL_LOOPS = {
    "claude-code": ('--tools ""', "--allowedTools Bash --", 'use Bash {"command": "echo tool works"}'),
    "codex": (
        "--skip-git-repo-check",
        "--skip-git-repo-check",
        'use exec_command {"cmd": "echo tool works"}',
    ),
}
"""The flag of the page, the flag with which the tool may be called, and the prompt."""


@pytest.mark.parametrize("client", TOOL_LOOPS)
async def test_a_coding_client_runs_the_tool_that_the_model_calls(gateway, tmp_path, client):
    folder = INSTALLED / client
    if not (folder / ".done").exists():
        pytest.skip(f"{client} is not installed; tests/sdks/clients/install says why")
    ((_, code),) = BLOCK.findall(
        (ROOT / "docs" / "pages" / "clients" / f"{client}.md").read_text(encoding="utf-8")
    )
    before, after, prompt = TOOL_LOOPS[client]
    if client == "claude-code":
        code = code.replace('-p "Hello" --output-format json', "-p --output-format json")
        after = f"{after} '{prompt}'"
    else:
        code = code.replace('"Hello"', f"'{prompt}'")
    code = code.replace(before, after)
    async with (
        ObedientWorker(models=[MODEL]) as worker,
        gateway(worker, kind="openai", models=MODELS, **DATABASE) as running,
    ):
        code = code.replace("http://127.0.0.1:8000", running.url)
        command = ["bash", "-e", "-c", code.replace("YOUR_KEY", running.keys["acme"].text)]
        _, output = await run_code(command, folder, tmp_path)
        assert "The tool said: " in output, output[-2000:]
        answers = [message for message in worker.seen[-1].body["messages"] if message["role"] == "tool"]
    assert "tool works" in answers[-1]["content"]
