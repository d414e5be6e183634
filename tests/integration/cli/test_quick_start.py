"""A start without a settings file: `radixgate serve --worker URL`, and `radixgate init`."""

import asyncio
import os
import re
import shlex
from contextlib import asynccontextmanager

import aiohttp
import pytest
import yaml

from gateway.settings.sources import load_settings
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.command_line import run_command
from tests.stage.forks import fork_module

SECONDS_MAX = 60.0
REPOSITORY = os.getcwd()


@pytest.fixture
def environment(tmp_path):
    return {**os.environ, "PYTHONPATH": REPOSITORY, "XDG_RUNTIME_DIR": str(tmp_path)}


@asynccontextmanager
async def serving(directory, environment, *arguments):
    """Run `radixgate serve` in a directory until it is ready, and give the lines that it printed."""
    process = await fork_module(
        *("gateway", "serve", *map(str, arguments)),
        *("--set", "drain.notice_seconds=0", "--set", "redis.escrow=false"),
        directory=directory,
        environment=environment,
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            lines = []
            while not lines or not lines[-1].startswith(("The same as a settings file", "The next start")):
                line = await process.stdout.readline()
                assert line, "".join(lines)
                lines.append(line.decode())
        yield "".join(lines)
    finally:
        process.terminate()
        await process.wait()


async def command(directory, environment, *arguments, stdin=""):
    return await asyncio.to_thread(run_command, *arguments, stdin=stdin, directory=directory, **environment)


async def post_as_curl(line):
    """Send what a `curl` command line would send, and return status and body."""
    words = shlex.split(line)
    headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    async with (
        aiohttp.ClientSession() as http,
        http.post(words[1], data=words[words.index("-d") + 1], headers=headers) as answer,
    ):
        return answer.status, await answer.json()


async def test_a_gateway_starts_by_the_address_of_its_worker_and_prints_a_request_that_works(
    tmp_path, environment
):
    async with ScriptedWorker(models=["org/it's-a-model"]) as worker:
        async with serving(tmp_path, environment, "--worker", f"{worker.url}/v1") as printed:
            assert "kind openai" in printed
            status, body = await post_as_curl(re.search(r"^ +(curl .*)$", printed, re.M)[1])
            assert (status, len(body["choices"])) == (200, 1), body
            assert worker.seen[-1].body["model"] == "org/it's-a-model"


async def test_what_was_found_is_written_as_a_file_that_starts_the_same_gateway(tmp_path, environment):
    file = tmp_path / "gateway.yaml"
    async with ScriptedWorker() as worker:
        async with serving(tmp_path, environment, "--worker", worker.url, "--write-config", file) as printed:
            assert load_settings(file).settings.workers[0].url == worker.url
            start = (
                f"radixgate serve --config {file}, with the same --set of drain.notice_seconds, redis.escrow"
            )
            assert f"The next start: {start}\n" in printed
        again = await command(
            tmp_path, environment, "serve", "--worker", worker.url, "--write-config", str(file)
        )
    assert (again[0], again[2]) == (
        2,
        f"radixgate: --write-config: {file} exists; start with --config {file}\n",
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--worker", "ftp://x"], "begins with http://"),
        (["--worker", "http://x:8000", "--worker", "x:8000"], "is named twice"),
        (
            ["--worker", "http://127.0.0.1:9", "--wait-seconds", "0"],
            "does not answer as a server with an OpenAI",
        ),
        (["--worker", "http://127.0.0.1:9", "--config", "a.yaml"], "--worker is for a start without a file"),
        (["--write-config", "a.yaml"], "need --worker URL"),
        (["--worker", "http://127.0.0.1:9", "--worker-key-env", "NO_SUCH"], "variable NO_SUCH is not set"),
        ([], "radixgate serve --worker http://HOST:PORT"),
    ],
)
async def test_a_wrong_start_is_refused_with_the_reason(tmp_path, environment, arguments, expected):
    code, _, errors = await command(tmp_path, environment, "serve", *arguments)
    assert code in (1, 2)
    assert expected in errors


async def test_four_answers_make_a_settings_file_with_a_key_that_is_valid(tmp_path, environment):
    async with ScriptedWorker(models=["m"]) as worker:
        answers = f"{worker.url} http://127.0.0.1:9\ny\nacme\nnew.yaml\n"
        code, output, _ = await command(tmp_path, environment, "init", stdin=answers)
        assert code == 0
        settings = load_settings(tmp_path / "new.yaml").settings
        assert [one.kind for one in settings.workers] == ["openai", "auto"]
        assert settings.listen.host == "0.0.0.0"
        key = re.search(r"^  (rg-\S+)$", output, re.M)[1]
        assert f"curl http://127.0.0.1:{settings.listen.port}/v1/chat/completions" in output
        assert f"Authorization: Bearer {key}" in output
        hashed = await command(tmp_path, environment, "keys", "hash", "-c", "new.yaml", stdin=f"{key}\n")
        assert settings.tenants[0].keys[0].hash in hashed[1]


async def test_a_file_that_exists_is_not_overwritten_and_another_name_is_requested(tmp_path, environment):
    (tmp_path / "gateway.yaml").write_text("mine")
    answers = "http://127.0.0.1:9\nn\n\ngateway.yaml\nno/such/directory.yaml\nother.yaml\n"
    code, output, _ = await command(tmp_path, environment, "init", stdin=answers)
    assert code == 0
    assert "gateway.yaml exists" in output
    assert (tmp_path / "gateway.yaml").read_text() == "mine"
    assert load_settings(tmp_path / "other.yaml").settings.workers[0].url == "http://127.0.0.1:9"


async def test_a_wrong_address_is_requested_again(tmp_path, environment):
    answers = "ftp://x\nhttp://127.0.0.1:9\nn\n\nnew.yaml\n"
    code, output, _ = await command(tmp_path, environment, "init", stdin=answers)
    assert code == 0
    assert "ftp://x: an address begins with http:// or https://" in output


async def test_a_worker_may_be_an_address_alone_in_a_file(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"workers": ["http://10.0.0.1:8000", {"url": "https://b.example/v1"}]}))
    workers = load_settings(file).settings.workers
    assert [(one.id, one.kind) for one in workers] == [("10.0.0.1-8000", "auto"), ("b.example-v1", "auto")]
