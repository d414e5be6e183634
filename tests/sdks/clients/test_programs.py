"""Coding clients and other programs, unchanged: every kind of request that each has, and the errors that it shows.

A program is set up by the lines of its page in the documentation; the last of them, a chat, is replaced here.
"""

import asyncio
import json
import os
import re
import signal
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.obedient_worker import ObedientWorker
from tests.sdks.clients.test_pages import BLOCK, DATABASE, INSTALLED, MODEL, PAGES

PIXEL = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
QWEN_WITH_IMAGES = """
mkdir -p ~/.qwen
echo '{"model": {"generationConfig": {"modalities": {"image": true}}}}' > ~/.qwen/settings.json
"""
SLOWLY = "count slowly " + "one two three four five six seven eight nine ten " * 4
SECONDS_MAX = 300
"""How long a program may take: a busy machine spends a minute on the start of some."""
ANSWER = re.compile(r"(?:You said|The tool said).*?(?=[\"\\\n\x1b]|$)|\"(?:city|days)\\?\": ?\\?\"?\w+")
"""The parts of a program's output that come from the model."""


@dataclass(frozen=True)
class Program:
    """The last lines of a program's page, one for each thing that it can do; `{prompt}` stands for the prompt."""

    chat: str
    tools: str | None = None
    tool_prompt: str = ""
    schema: str | None = None
    schema_prompt: str = "Where?"
    image: str | None = None
    image_setup: tuple[str, str] = ("", "")
    """Words of the page that are replaced for a model that sees images."""
    direct: bool = True
    """Whether the program speaks Chat Completions, and so with the worker itself."""


PROGRAMS = {
    "claude-code": Program(
        chat="claude -p {prompt} --output-format stream-json --verbose --include-partial-messages --tools ''",
        tools="claude -p {prompt} --output-format json --allowedTools Bash",
        tool_prompt='use Bash {"command": "echo tool works"}',
        schema='claude -p {prompt} --output-format json --json-schema "$(cat schema.json)"',
        schema_prompt='use StructuredOutput {"city": "text", "days": 1}',
        image="claude -p {prompt} --output-format json --allowedTools Read",
        direct=False,
    ),
    "codex": Program(
        chat="codex exec --skip-git-repo-check {prompt}",
        tools="codex exec --skip-git-repo-check {prompt}",
        tool_prompt='use exec_command {"cmd": "echo tool works"}',
        schema="codex exec --skip-git-repo-check --output-schema schema.json {prompt}",
        image="codex exec --skip-git-repo-check --image=pixel.png {prompt}",
        direct=False,
    ),
    "opencode": Program(
        chat="opencode run -m radixgate/llama-3.1-8b {prompt}",
        tools="opencode run -m radixgate/llama-3.1-8b --auto {prompt}",
        tool_prompt='use bash {"command": "echo tool works", "description": "says so"}',
        image="opencode run -m radixgate/llama-3.1-8b {prompt} -f pixel.png",
        image_setup=(
            '"llama-3.1-8b": {}',
            '"llama-3.1-8b": {"attachment": true, "modalities": {"input": ["text", "image"], "output": ["text"]}}',
        ),
    ),
    "qwen-code": Program(
        chat="qwen --auth-type openai -p {prompt}",
        tools="qwen --auth-type openai --yolo -p {prompt}",
        tool_prompt='use run_shell_command {"command": "echo tool works"}',
        schema="qwen --auth-type openai --json-schema @schema.json -o json -p {prompt}",
        schema_prompt='use structured_output {"city": "text", "days": 1}',
        image="qwen --auth-type openai -p {prompt}",
        image_setup=("export OPENAI_MODEL", f"{QWEN_WITH_IMAGES}\nexport OPENAI_MODEL"),
    ),
    "aider": Program(
        chat="aider --model openai/llama-3.1-8b --no-git --yes-always --no-show-model-warnings --message {prompt}",
    ),
    "llm": Program(
        chat="llm -m llama-3.1-8b {prompt}",
        tools="llm -m llama-3.1-8b {prompt} --functions 'def add(a: int, b: int) -> int: return a + b'",
        tool_prompt='use add {"a": 2, "b": 3}',
        schema="llm -m llama-3.1-8b --schema schema.json {prompt}",
        image="llm -m llama-3.1-8b {prompt} -a pixel.png",
        image_setup=("supports_tools: true", "supports_tools: true\n  vision: true"),
    ),
}
MODELS = json.dumps([{"name": MODEL, "aliases": ["claude-*"], "context_length": 200_000}])
SHORT = json.dumps([{"name": MODEL, "aliases": ["claude-*"], "context_length": 200}])
IMAGE_PROMPTS = {"claude-code": 'use Read {"file_path": "%s"}', "qwen-code": "What is this? @pixel.png"}


class Running:
    """A program with the setup of its page, in a folder of its own."""

    def __init__(self, name: str, directory: Path) -> None:
        self.program = PROGRAMS[name]
        self.folder = INSTALLED / name
        self.directory = directory
        if not (self.folder / ".done").exists():
            pytest.skip(f"{name} is not installed; tests/sdks/clients/install says why")
        (page,) = (page for page in PAGES if page.stem == name)
        ((_, code),) = BLOCK.findall(page.read_text(encoding="utf-8"))
        self.setup, self.last_line = code.rstrip("\n").rsplit("\n", 1)
        self.log = directory / "output"
        (directory / "home").mkdir()
        (directory / "pixel.png").write_bytes(PIXEL)
        (directory / "schema.json").write_text(json.dumps(PLACE))

    async def start(self, url, key, line, prompt, replaced=("", "")):
        """Start the program with a prompt."""
        setup = self.setup.replace(*replaced) if replaced[0] else self.setup
        setup = setup.replace("http://127.0.0.1:8000", url).replace("YOUR_KEY", key)
        bins = f"{self.folder / 'bin'}:{self.folder / 'node_modules' / '.bin'}:{os.environ['PATH']}"
        home = str(self.directory / "home")
        return await asyncio.create_subprocess_exec(
            *("bash", "-e", "-c", setup + "\nexec " + line.replace("{prompt}", '"$PROMPT"')),
            cwd=self.directory,
            env={**os.environ, "PATH": bins, "HOME": home, "PYTHONPATH": "", "PROMPT": prompt},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self.log.open("wb"),
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )

    async def output(self, *args, enough=(), seconds=SECONDS_MAX, **more):
        """Return what the program prints until it ends, has printed one of the words in `enough`, or time is up."""
        process = await self.start(*args, **more)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while process.returncode is None and not any(words in self.said for words in enough):
                        await asyncio.sleep(0.2)
        finally:
            stop(process, signal.SIGKILL)
        await process.wait()
        return self.log.read_text()

    @property
    def said(self):
        """What the program has printed, whatever its line breaks are."""
        return " ".join(self.log.read_text().split())


def stop(process, number):
    """Signal the process and its children."""
    if process.returncode is None:
        os.killpg(process.pid, number)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("what", ["chat", "tools", "schema", "image"])
async def test_a_program_gets_the_answers_that_it_gets_directly(gateway, tmp_path, name, what):
    running_program = Running(name, tmp_path)
    program = running_program.program
    line = getattr(program, what)
    if line is None:
        pytest.skip(f"{name} has no such thing")
    prompts = {"chat": "Hello", "tools": program.tool_prompt, "schema": program.schema_prompt}
    prompt = prompts.get(what) or IMAGE_PROMPTS.get(name, "What is this?")
    prompt = prompt.replace("%s", str(tmp_path / "pixel.png"))
    replaced = program.image_setup if what == "image" else ("", "")
    async with (
        ObedientWorker(models=[MODEL]) as worker,
        gateway(worker, kind="openai", models=MODELS, **DATABASE) as running,
    ):
        key = running.keys["acme"].text
        output = await running_program.output(running.url, key, line, prompt, replaced=replaced)
        print(output[-3000:])
        directly = None
        if program.direct:
            directly = await running_program.output(worker.url, key, line, prompt, replaced=replaced)
        bodies = json.dumps([each.body["messages"] for each in worker.seen])
    found = ANSWER.findall(output)
    print(found)
    assert found
    assert directly is None or ANSWER.findall(directly) == found
    if what == "image":
        assert "data:image/png" in bodies


REFUSALS = {
    "wrong key": ("Incorrect API key provided",),
    "over quota": ("does not suffice", "Quota exceeded"),
    "too long": ("maximum context length", "Prompt is too long", "ran out of room", "has hit a token limit"),
}
"""What programs say, some in words of their own."""
WAITING = ("opencode", "qwen-code")
"""Programs that wait, without a word, until the budget begins anew."""
WAITING_SECONDS = 60
"""How long such a program is observed."""
BUDGET = {"requests": 1, "per": "day", "reset": "calendar"}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("what", REFUSALS)
async def test_a_program_shows_why_it_is_refused(gateway, tmp_path, name, what):
    program = Running(name, tmp_path)
    models = SHORT if what == "too long" else MODELS
    tenants = {"acme": {}, "globex": {"limits": [BUDGET]}}
    async with (
        ObedientWorker(models=[MODEL]) as worker,
        gateway(worker, kind="openai", models=models, tenants=tenants, **DATABASE) as running,
    ):
        if what == "over quota":
            async with running.chat(tenant="globex", model=MODEL) as response:
                assert response.status == 200
        keys = {"wrong key": "wrong", "over quota": running.keys["globex"].text}
        key, answered = keys.get(what, running.keys["acme"].text), len(worker.seen)
        waits = what == "over quota" and name in WAITING
        more = {"seconds": WAITING_SECONDS} if waits else {"enough": REFUSALS[what]}
        output = await program.output(running.url, key, program.program.chat, "Hello " * 300, **more)
        assert len(worker.seen) == answered
    assert any(words in program.said for words in REFUSALS[what]) != waits, output[-3000:]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_that_is_stopped_frees_the_worker(gateway, tmp_path, name):
    program = Running(name, tmp_path)
    async with (
        ObedientWorker(models=[MODEL]) as worker,
        gateway(worker, kind="openai", models=MODELS, **DATABASE) as running,
    ):
        # The answer lasts until the program has left, however busy the machine is.
        worker.slow_gap = 10
        process = await program.start(running.url, running.keys["acme"].text, program.program.chat, SLOWLY)
        try:
            await running.until(lambda: any(seen.frames for seen in worker.seen), seconds=SECONDS_MAX)
            stop(process, signal.SIGINT)
            await running.until(lambda: running.idle and all(seen.ended != "running" for seen in worker.seen))
        finally:
            stop(process, signal.SIGKILL)
        assert "aborted" in {seen.ended for seen in worker.seen}
