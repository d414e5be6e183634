"""The deployment that a command works on: that of the running gateway, from any directory."""

import asyncio
import os
import re
import shlex
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from msgspec.structs import replace

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.deployment import ADMIN, REDIS, STATE, find_deployment
from gateway.process.running_gateways import GatewayInfo, announced, running_gateways
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.command_line import run_command
from tests.stage.forks import fork_module

SECONDS_MAX = 60.0
REPOSITORY = os.getcwd()


@pytest.fixture
def elsewhere(tmp_path):
    """A directory that is not the gateway's."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    return directory


@pytest.fixture
def environment(tmp_path):
    """An environment in which only the gateways of this test are found."""
    return {**os.environ, "PYTHONPATH": REPOSITORY, "TMPDIR": str(tmp_path)}


@asynccontextmanager
async def serving(directory, environment, worker, **more):
    """Run a gateway in a directory of its own, and give the URL of its listener for tenants."""
    directory.mkdir()
    settings = {
        "workers": [worker.url],
        "listen": {"port": 0},
        "admin": {"port": 0},
        "drain": {"notice_seconds": 0, "seconds": 1},
        **more,
    }
    (directory / "gateway.yaml").write_text(yaml.safe_dump(settings))
    process = await fork_module(
        *("gateway", "serve", "--config", "gateway.yaml"), directory=directory, environment=environment
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            line = (await process.stdout.readline()).decode()
        yield re.search(r"ready at (\S+)", line)[1]
    finally:
        process.terminate()
        await process.wait()


async def radixgate(directory, environment, *arguments):
    return await asyncio.to_thread(run_command, *arguments, directory=directory, **environment)


async def test_a_key_made_in_another_directory_works_at_the_running_gateway(tmp_path, elsewhere, environment):
    home = tmp_path / "home"
    async with ScriptedWorker() as worker, serving(home, environment, worker) as url:
        plan = await radixgate(elsewhere, environment, "plans", "set", "free", "--concurrency", "8")
        assert (plan[0], plan[1]) == (0, "plan free created: concurrency 8, weight 1, models *\n")
        state = home / ".radixgate"
        assert f"deployment: database {state}/radixgate.db, secret {state}/deployment.secret" in plan[2]
        await radixgate(elsewhere, environment, "tenants", "set", "acme", "--plan", "free")
        code, key, _ = await radixgate(elsewhere, environment, "keys", "create", "acme", "--quiet")
        assert code == 0
        code, picture, errors = await radixgate(elsewhere, environment, "top", "--once")
        assert (code, errors) == (0, "")
        assert "1 gateway, 1 of 1 workers up" in picture
        headers = {"Authorization": f"Bearer {key.strip()}"}
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        async with aiohttp.ClientSession() as http, asyncio.timeout(SECONDS_MAX):
            status = 0
            while status != 200:
                async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                    status = answer.status
                await asyncio.sleep(0.05)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [["plans", "set", "free"], ["keys", "create", "acme"], ["usage"], ["keys", "new"], ["index", "stats"]],
)
async def test_no_deployment_is_made_up_where_none_is(elsewhere, environment, arguments):
    code, output, errors = await radixgate(elsewhere, environment, *arguments)
    assert (code, output) == (2, "")
    assert "no gateway runs on this machine" in errors
    assert "--config FILE" in errors
    assert list(elsewhere.iterdir()) == []


async def test_one_of_several_gateways_has_to_be_named(tmp_path, elsewhere, environment):
    one, other = tmp_path / "one", tmp_path / "other"
    async with ScriptedWorker() as worker, serving(one, environment, worker):
        async with serving(other, environment, worker):
            code, _, errors = await radixgate(elsewhere, environment, "tenants", "list")
            assert code == 2
            assert "several gateways run on this machine" in errors
            choices = options_of(errors)
            assert sorted(choices) == [["--config", f"{home}/gateway.yaml"] for home in (one, other)]
            for options in choices:
                named = await radixgate(elsewhere, environment, "tenants", "list", *options)
                assert named[0] == 0
                assert f"database {Path(options[1]).parent}/.radixgate/radixgate.db" in named[2]
            code, _, errors = await radixgate(elsewhere, environment, "requests", "list")
            assert code == 2
            for options in options_of(errors):
                assert "--url" in options
                assert (await radixgate(elsewhere, environment, "requests", "list", *options))[0] == 0


def options_of(error):
    """Return the options that an error offers, one list of words for each gateway."""
    return [shlex.split(options) for options in re.findall("`(.*?)`", error)]


def test_a_gateway_without_a_settings_file_is_chosen_by_its_state_directory(
    tmp_path, own_temporary_directory
):
    own_temporary_directory.mkdir(mode=0o700)
    one, other = tmp_path / "one", tmp_path / "with a space"
    for home in (one, other):
        home.mkdir()
        (home / "deployment.secret").write_text("a secret of this deployment")
    first = replace(GATEWAY, state_directory=str(one), assignments=["workers=[]", "listen.port=8002"])
    second = replace(GATEWAY, state_directory=str(other), assignments=["database.url=sqlite:////x/t.db"])
    with announced(first), announced(replace(second, pid=4712)):
        with pytest.raises(CommandError, match="several gateways") as refused:
            find_deployment(None, None, STATE)
        choices = options_of(str(refused.value))
        found = [find_deployment(None, options[1::2], STATE).settings.state_directory for options in choices]
        assert found == [str(one), str(other)]
        assert "sqlite" not in str(refused.value)


def test_a_gateway_that_is_chosen_by_its_state_directory_has_the_settings_of_its_start(
    tmp_path, own_temporary_directory
):
    started = ["workers=[{id: a, kind: openai, url: 'http://127.0.0.1:9'}]", "redis.url=redis://127.0.0.1:1"]
    gateway = replace(GATEWAY, state_directory=str(tmp_path), assignments=started)
    chosen = [f"state_directory={tmp_path}"]
    with announced(gateway), announced(replace(GATEWAY, pid=4712)):
        found = find_deployment(None, chosen, REDIS)
        assert found.gateway == gateway
        assert [worker.id for worker in found.settings.workers] == ["a"]
        assert found.settings.redis.url == "redis://127.0.0.1:1"
        overridden = find_deployment(None, [*chosen, "redis.url=redis://127.0.0.1:2"], REDIS)
        assert overridden.settings.redis.url == "redis://127.0.0.1:2"
        assert find_deployment(None, chosen, ADMIN).admin_url == gateway.admin_url
    assert find_deployment(None, chosen, REDIS).settings.workers == ()


async def test_settings_in_the_environment_of_the_gateway_are_reported_as_missing_here(
    tmp_path, elsewhere, environment
):
    secret = {**environment, "RADIXGATE__DEPLOYMENT_SECRET": "a secret of the environment"}
    async with ScriptedWorker() as worker, serving(tmp_path / "home", secret, worker):
        code, _, errors = await radixgate(elsewhere, environment, "tenants", "list")
        assert code == 2
        assert "not set here: RADIXGATE__DEPLOYMENT_SECRET" in errors
        assert (await radixgate(elsewhere, environment, "top", "--once"))[0] == 0
        assert (await radixgate(elsewhere, secret, "tenants", "list"))[0] == 0


@pytest.fixture
def own_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"radixgate.{os.getuid()}"


GATEWAY = GatewayInfo(
    pid=4711, config=None, assignments=[], variables=[], state_directory="/x", admin_url="http://127.0.0.1:1"
)


def test_a_gateway_is_found_while_it_runs(own_temporary_directory):
    assert running_gateways() == []
    with announced(GATEWAY):
        assert running_gateways() == [GATEWAY]
    assert running_gateways() == []


def test_the_file_of_a_killed_gateway_is_removed(own_temporary_directory):
    own_temporary_directory.mkdir(mode=0o700)
    (own_temporary_directory / "4712").write_text("{}")
    assert running_gateways() == []
    assert list(own_temporary_directory.iterdir()) == []


def test_a_directory_that_others_may_write_is_not_believed(own_temporary_directory):
    own_temporary_directory.mkdir(mode=0o700)
    with announced(GATEWAY):
        own_temporary_directory.chmod(0o777)
        assert running_gateways() == []
        own_temporary_directory.chmod(0o700)
    own_temporary_directory.rmdir()
    Path(own_temporary_directory).symlink_to("/tmp")
    assert running_gateways() == []
