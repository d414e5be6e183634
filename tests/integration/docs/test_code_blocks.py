"""Every code block of the README and the site works: settings load, Python runs, commands run or at least parse.

Commands for tenants, keys and usage run against a real gateway. Commands that start servers, load models, need a
cluster or take minutes are parsed by the command itself, and what they name (make targets, extras, files) exists.
"""

import asyncio
import base64
import json
import os
import re
import shlex
import sys
import tomllib
from contextlib import asynccontextmanager
from itertools import pairwise

import aiohttp
import pytest
import yaml
from typer.main import get_command

from gateway.cli.main import app
from gateway.ledger.webhooks import signed
from gateway.settings.sources import load_settings
from tests.fakes.scripted_worker import ScriptedWorker
from tests.integration.docs.code_blocks import ROOT, blocks, blocks_of, commands_of, pages
from tests.stage.command_line import run_command
from tests.stage.forks import fork_module

SECONDS_MAX = 60.0
LANGUAGES = {"sh", "yaml", "python", "toml", "text", "json"}
RUN = {
    "plans",
    "tenants",
    "organisations",
    "keys",
    "usage",
    "operators",
    "audit",
    "queue",
    "check-config",
    "database",
    "plan",
}
"""Commands that run here; `keys new` and `keys rotate` among them get the names of this deployment."""

OUTSIDE = {
    *("helm", "docker", "kubectl", "psql", "openssl", "git", "redis-server"),
    *("export", "cd", "mkdir", "echo", "."),
}
"""Programs of others, which are not run."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_every_block_names_its_language():
    unnamed = [str(block) for page in pages() for block in blocks_of(page) if block.language not in LANGUAGES]
    assert unnamed == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_settings_can_be_loaded(block, tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(block.text)
    variables = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", block.text), "value")
    load_settings(file, variables, complete=False)


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_can_be_read(block):
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "documentation"})


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_exist_with_their_options(block):
    for words in commands_of(block):
        check_command(words)


def check_command(words):
    """Fail if a command cannot be meant as it is written."""
    program, *arguments = words
    if program == "radixgate":
        parse(arguments)
    elif program == "make":
        targets = [word for word in arguments if "=" not in word]
        assert set(targets) <= TARGETS, words
    elif program == "pip":
        extras = re.findall(r"\[([\w,-]+)\]", " ".join(arguments))
        assert {extra for some in extras for extra in some.split(",")} <= set(
            PROJECT["optional-dependencies"]
        )
    elif program.startswith("python"):
        assert arguments[0] == "-m"
        if arguments[1] == "pytest":
            assert all((ROOT / file).exists() for file in arguments[2:]), words
        elif arguments[1] != "venv":
            assert (ROOT / arguments[1].replace(".", "/")).with_suffix(".py").exists(), words
    elif program == "helm":
        assert all((ROOT / word).exists() for word in arguments if word.startswith("helm/")), words
    else:
        assert program in {"curl", *OUTSIDE}, f"teach the test what {program} is"


def parse(arguments):
    """Parse a command line of radixgate as the command does, without running it."""
    context = get_command(app).make_context("radixgate", list(arguments))
    command = context.command
    rest = [*context._protected_args, *context.args]
    while rest and hasattr(command, "get_command"):
        name, *rest = rest
        command = command.get_command(context, name)
        assert command is not None, arguments
        context = command.make_context(name, rest, parent=context)
        rest = [*getattr(context, "_protected_args", []), *context.args]


@asynccontextmanager
async def deployment(directory, *, start=fork_module, **more):
    """Run a gateway, with more settings, and give its URLs and the environment of its commands."""
    path = os.pathsep.join([str(directory), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(directory)}
    async with ScriptedWorker(models=["llama-3.1-8b", "tiny-llama"]) as worker:
        settings = {**more, "workers": [worker.url], "listen": {"port": 0}, "admin": {"port": 0}}
        settings["drain"] = {"notice_seconds": 0, "seconds": 1}
        (directory / "gateway.yaml").write_text(yaml.safe_dump(settings))
        process = await start(
            *("gateway", "serve", "--config", "gateway.yaml"), directory=directory, environment=environment
        )
        try:
            async with asyncio.timeout(SECONDS_MAX):
                first, second = [(await process.stdout.readline()).decode() for _ in range(2)]
            admin = re.search(r"console (\S+)/ui/", second)[1]
            yield re.search(r"ready at (\S+)", first)[1], admin, environment
        finally:
            process.terminate()
            await process.wait()


RUNNABLE = [
    page
    for page in pages()
    if any(
        words[0] == "curl" or (words[0] == "radixgate" and words[1] in RUN)
        for block in blocks_of(page)
        if block.language == "sh"
        for words in commands_of(block)
    )
]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
async def test_the_commands_of_a_page_run_in_their_order(page, tmp_path):
    made = {}
    async with deployment(tmp_path) as (url, admin, environment):
        await radixgate(tmp_path, environment, ["plans", "set", "free"])
        await radixgate(tmp_path, environment, ["tenants", "set", "acme"])
        made["key"] = (await radixgate(tmp_path, environment, ["keys", "create", "acme", "--quiet"])).strip()
        token = await radixgate(
            tmp_path, environment, ["operators", "create", "ann", "--role", "owner", "-q"]
        )
        made["token"] = token.strip()
        for block in blocks_of(page):
            if block.language == "json":
                assert_alike(made["answer"], json.loads(block.text), str(block))
            for words in commands_of(block) if block.language == "sh" else ():
                if words[0] == "radixgate" and words[1] in RUN:
                    await run_here(words[1:], tmp_path, environment, made)
                elif words[0] == "curl":
                    made["answer"] = await send(words, url, admin, made)


def assert_alike(answer, printed, where):
    """Fail if the answer of the last `curl` has other fields than the one that the page prints below it."""
    if isinstance(printed, dict):
        assert answer.keys() == printed.keys(), where
        for name in printed:
            assert_alike(answer[name], printed[name], where)
    elif isinstance(printed, list):
        for real, shown in zip(answer, printed, strict=False):  # counts differ with what has happened before
            assert_alike(real, shown, where)


async def run_here(arguments, directory, environment, made):
    """Run one command with the key and the file of this deployment in place of those of the page."""
    known = made["key"].split("-")[1]
    arguments = [known if re.fullmatch("7Kq3xYb1", word) else word for word in arguments]
    if arguments[0] == "plan":
        return
    if "parquet" in arguments:
        arguments = [str(directory / word) if word.endswith(".parquet") else word for word in arguments]
    made["output"] = await radixgate(directory, environment, arguments)


async def radixgate(directory, environment, arguments):
    done = await asyncio.to_thread(run_command, *arguments, directory=directory, **environment)
    assert done.code == 0, f"{shlex.join(arguments)}: {done.errors}"
    return done.output


async def send(words, url, admin, made):
    """Send what `curl` would send to this gateway, with a key or a token that is valid; return the JSON answer."""
    target = next(word for word in words[1:] if word.startswith("http"))
    is_admin = ":8001" in target
    target = re.sub(r"http://127\.0\.0\.1:\d+", admin if is_admin else url, target)
    headers = {"Authorization": f"Bearer {made['token'] if is_admin else made['key']}"}
    headers |= {"Content-Type": "application/json"}
    body = words[words.index("-d") + 1] if "-d" in words else None
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if body else "GET"
    async with aiohttp.ClientSession() as http, asyncio.timeout(SECONDS_MAX):
        while True:
            async with http.request(method, target, data=body, headers=headers) as answer:
                if answer.status not in (401, 404):  # a new key, or a new tenant, takes effect within a second
                    assert answer.status < 300, (words, await answer.text())
                    return await answer.json() if "json" in answer.content_type else None
            await asyncio.sleep(0.1)


def test_the_receiver_of_the_guide_on_selling_accepts_what_the_gateway_signs():
    page = ROOT / "docs" / "pages" / "guides" / "selling.md"
    (code,) = (block.text for block in blocks_of(page) if block.language == "python")
    guide = {}
    exec(code, guide)
    data = {"tenant": "acme", "since": "2027-01-01T00:00:00Z", "until": "2027-01-01T01:00:00Z", "cost": 700}
    body = json.dumps({"type": "usage.hour", "timestamp": "2027-01-01T01:00:00Z", "data": data}).encode()
    secret = b"twenty-four bytes or more"
    headers = signed(secret, "usage-1", 1000, body)
    written = "whsec_" + base64.b64encode(secret).decode()
    event = guide["verified"](headers, body, written, 1001.0)
    reported = {}
    assert guide["meter_event"](event, reported)["payload"] == {"stripe_customer_id": "acme", "value": "700"}
    assert guide["meter_event"](event, reported) is None
    with pytest.raises(ValueError, match="not valid"):
        guide["verified"](headers, body + b" ", written, 1001.0)
    with pytest.raises(ValueError, match="not valid"):
        guide["verified"](headers, body, written, 2000.0)


POLICY_PAGE = ROOT / "docs" / "pages" / "extend" / "routing-policy.md"
ADAPTER_PAGE = ROOT / "docs" / "pages" / "extend" / "worker-adapter.md"


@pytest.fixture
def policy_package(tmp_path):
    return installed_package(POLICY_PAGE, "my-policy", tmp_path)


@pytest.fixture
def adapter_package(tmp_path):
    return installed_package(ADAPTER_PAGE, "my-engine", tmp_path)


def installed_package(page, folder, tmp_path):
    """Return a directory with the package of a page, in the state in which `pip install` leaves packages."""
    for block in blocks_of(page):
        if name := re.match(rf"# {folder}/(\S+)\n", block.text):
            (tmp_path / name[1]).write_text(block.text)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    installed = tmp_path / f"{folder.replace('-', '_')}-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
        for group, points in project["entry-points"].items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(groups))
    return tmp_path


async def test_the_policy_of_the_page_is_compared_with_the_default(policy_package):
    first = next(
        words
        for block in blocks_of(POLICY_PAGE)
        if block.language == "sh"
        for words in commands_of(block)
        if words[:2] == ["radixgate", "simulate"]
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *first[1:]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(policy_package), str(ROOT)])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    assert process.returncode == 0, errors.decode()
    rows = [line.split() for line in output.decode().splitlines()[:8]]
    errors_of = {row[0]: row[-1] for row in rows if len(row) > 1}
    compared = [after for word, after in pairwise(first) if word == "--policy"]
    assert {name: errors_of.get(name) for name in compared} == dict.fromkeys(compared, "0")


async def start_program(module, *arguments, directory, environment):
    """Start a gateway that finds packages of its environment at its start, as no fork does."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        cwd=directory,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )


async def test_the_policy_of_the_page_ranks_the_requests_of_a_gateway(policy_package):
    (settings,) = [yaml.safe_load(block.text) for block in blocks_of(POLICY_PAGE) if block.language == "yaml"]
    prompt = policy_package / "prompt"
    prompt.write_text("What is prefix caching?")
    async with deployment(policy_package, start=start_program, routing=settings["routing"]) as (
        url,
        _,
        environment,
    ):
        made = {"key": "", "token": ""}
        body = '{"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Hello"}]}'
        await send(["curl", f"{url}/v1/chat/completions", "-d", body], url, "", made)
        asked = ["route", "--model", "llama-3.1-8b", "--explain", str(prompt)]
        explained = await radixgate(policy_package, environment, asked)
    assert "policy nearest" in explained
    assert "tokens to compute" in explained


async def test_the_adapter_of_the_page_passes_the_tests_of_the_interface(adapter_package):
    suite = "tests/conformance/test_worker_adapter.py"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "myengine", suite),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(adapter_package), str(ROOT)])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    assert process.returncode == 0, output.decode()
    assert re.search(r"^\d+ passed", output.decode(), re.M)
