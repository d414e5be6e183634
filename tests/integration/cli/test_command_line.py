"""The commands, as processes: their output, their refusals, and how they stop."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import yaml

from gateway.runtime import server
from tests.fakes.scripted_worker import ScriptedWorker
from tests.stage.command_line import run_command
from tests.stage.forks import fork_blocking


def run_process(*arguments, seconds_max=150, **environment):
    """Runs a command to its end in a process of its own: exit code, output, errors."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds_max,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def settings_file(tmp_path):
    def write(**settings):
        tree = {
            "workers": [{"id": "a", "kind": "openai", "url": "http://127.0.0.1:9", "models": ["m"]}],
            "listen": {"port": 0},
            "admin": {"port": 0},
            "state_directory": str(tmp_path / "state"),
            "drain": {"notice_seconds": 0, "seconds": 5},
            **settings,
        }
        path = tmp_path / "gateway.yaml"
        path.write_text(yaml.safe_dump(tree))
        return path

    return write


@pytest.fixture
def serve_here(monkeypatch):
    """Runs `serve` in this process until it is refused; the heaps and the threads' turns here stay as they are."""
    monkeypatch.setattr(server, "return_freed_memory", lambda: None)
    seconds = sys.getswitchinterval()
    yield partial(run_command, "serve")
    sys.setswitchinterval(seconds)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        *([name, "-h"] for name in ("serve", "worker", "demo", "keys", "index", "doctor", "plan", "ladder")),
    ],
)
def test_help_is_given(arguments):
    code, output, errors = run_command(*arguments)
    assert code == (0 if arguments else 2)
    # typer writes it large, argparse small.
    assert "usage: " in output.lower()
    assert errors == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--nope"], "serve: No such option: --nope"),
        (["nope"], "No such command 'nope'"),
        (["serve", "--config", "/nowhere.yaml"], "/nowhere.yaml: there is no such file"),
        (["check-config", "--set", "listen.prt=1"], "$.listen.prt: unknown setting (did you mean port?)"),
        (["serve"], "$.workers: at least one worker is needed"),
        (["check-config", "--set", "$.listen.port=x"], "$.listen.port: expected a port, 0 to 65535"),
        (["worker"], "Missing option '--model'"),
        (["worker", "--model", "/nowhere"], "/nowhere"),
        (["keys", "hash"], "not a key of the form"),
        (["plan"], "plan: --config-json is needed"),
        (["plan", "--config-json", "/nowhere"], "/nowhere cannot be read"),
        (["plan", "--gpus", "0"], "--gpus"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_two(arguments, expected):
    code, output, errors = run_command(*arguments)
    assert code == 2
    assert expected in errors
    assert len(errors.strip().splitlines()) == 1
    assert output == ""


def test_settings_are_checked_and_explained(settings_file):
    path = settings_file(deployment_secret="very secret")
    code, output, _ = run_command("check-config", "--config", path)
    assert (code, output) == (0, "The settings are valid: 1 worker, 0 tenants, policy cost.\n")
    code, output, _ = run_command("explain-config", "--config", path, RADIXGATE__LISTEN__PORT="7")
    assert code == 0
    assert re.search(r"^\$\.listen\.port +7 +environment RADIXGATE__LISTEN__PORT$", output, re.M)
    assert re.search(r"^\$\.deployment_secret +\*\*\*\* +", output, re.M)
    assert "very secret" not in output


def test_what_is_odd_is_a_warning_and_no_refusal(settings_file):
    key = {"id": "k", "hash": "hmac-sha256:" + "0" * 64, "expires": "2020-01-31"}
    path = settings_file(tenants=[{"id": "acme", "keys": [key]}])
    code, output, errors = run_command("check-config", "--config", path, RADIXGATE_LISTEN_PORT="7")
    assert (code, output) == (0, "The settings are valid: 1 worker, 1 tenant, policy cost.\n")
    assert errors.splitlines() == [
        "radixgate: warning: environment RADIXGATE_LISTEN_PORT: not a setting; write RADIXGATE__LISTEN__PORT",
        "radixgate: warning: $.tenants[0].keys[0].expires: 2020-01-31 has passed; the key is refused",
    ]


def test_a_line_stays_one_line_whatever_is_quoted_in_it(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text('"a\\nb\\e[1m": 1\n')
    code, _, errors = run_command("check-config", "--config", path)
    assert (code, errors) == (2, "radixgate: $.a\\nb\\x1b[1m: unknown setting\n")


def test_a_new_secret_is_announced(tmp_path):
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf" / "gateway.yaml"
    path.write_text("workers: []\n")
    secret = tmp_path / "conf" / ".radixgate" / "deployment.secret"
    for said in ("was generated", "is"):
        code, _, errors = run_command("keys", "new", "--config", path)
        assert code == 0
        assert (
            errors == f"The deployment secret {said} in {secret}; this key is only valid with that secret.\n"
        )
    assert secret.read_text()
    assert run_command("keys", "new", "--set", "deployment_secret=x").errors == ""


def test_a_new_key_fits_the_settings_and_its_hash_can_be_made_again(settings_file):
    path = settings_file()
    code, output, _ = run_command("keys", "new", "--config", path)
    assert code == 0
    key = re.search(r"rg-\S+", output)[0]
    entry = yaml.safe_load(output.partition("settings:\n")[2])
    assert yaml.safe_load(run_command("keys", "hash", "--config", path, stdin=key).output) == entry
    path = settings_file(tenants=[{"id": "acme", "keys": entry}])
    assert run_command("check-config", "--config", path)[0] == 0


def start_program(*arguments):
    """Start `python -m` as a program, for what a fork could do otherwise."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class Serving:
    """`radixgate serve` in a process of its own, a fork unless another way to start it is given."""

    def __init__(self, path, start=fork_blocking):
        self.process = start("gateway", "serve", "--config", str(path))
        lines = [self.process.stdout.readline() for _ in range(2)]
        assert all(lines), self.process.stderr.read()
        self.url = re.search(r"ready at (\S+)", lines[0])[1]
        self.admin = re.search(r"(http\S+)/ui/", lines[1])[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


async def until_logged(serving, text):
    """Wait until the gateway logs a line that has the text, and return the line. The gateway still runs then."""
    while text not in (line := await asyncio.to_thread(serving.process.stderr.readline)):
        assert line, "the gateway has ended"
    assert serving.process.poll() is None
    return line


async def readiness(serving, http):
    """Return the status of the readiness probe, and whether the gateway says that it drains."""
    async with http.get(serving.admin + "/health/ready") as response:
        return response.status, (await response.json())["draining"]


async def test_a_gateway_serves_and_stops_on_a_signal(settings_file):
    async with ScriptedWorker() as worker:
        path = settings_file(workers=[{"id": "a", "kind": "sglang", "url": worker.url, "models": ["m"]}])
        with Serving(path, start_program) as serving:
            async with aiohttp.ClientSession() as http:
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                async with http.post(serving.url + "/v1/chat/completions", json=body) as response:
                    assert response.status == 200
                async with http.get(serving.admin + "/metrics") as response:
                    metrics = await response.text()
            serving.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(serving.process.wait, 60) == 0
    assert "radixgate_requests_total{" in metrics
    assert "_created" not in metrics


async def test_a_running_stream_ends_normally_when_the_gateway_gets_a_signal_to_stop(settings_file):
    async with ScriptedWorker() as worker:
        worker.then(tokens=20, gap=0.05)
        entry = {"id": "a", "kind": "sglang", "url": worker.url, "models": ["m"]}
        path = settings_file(workers=[entry], drain={"notice_seconds": 3, "seconds": 60})
        with Serving(path) as serving:
            async with aiohttp.ClientSession() as http:
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
                async with http.post(serving.url + "/v1/chat/completions", json=body) as response:
                    await response.content.readline()
                    serving.process.send_signal(signal.SIGTERM)
                    await until_logged(serving, "stopping: ")
                    async with asyncio.timeout(60):
                        while (found := await readiness(serving, http)) != (503, True):
                            assert found == (200, False)
                            await asyncio.sleep(0.01)
                    assert (await response.text()).endswith("data: [DONE]\n\n")
                assert await asyncio.to_thread(serving.process.wait, 60) == 0


async def test_a_keyboard_stops_an_idle_gateway_at_once(settings_file):
    with Serving(settings_file(drain={"notice_seconds": 60, "seconds": 60})) as serving:
        async with aiohttp.ClientSession() as http:
            async with http.get(serving.url + "/v1/models") as response:
                assert response.status == 200
            serving.process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(serving.process.wait, 60) == 0


async def test_an_interrupt_lets_requests_end_and_prints_how_not_to_wait(settings_file):
    async with ScriptedWorker() as worker:
        worker.then(silent=True)
        entry = {"id": "a", "kind": "sglang", "url": worker.url, "models": ["m"]}
        path = settings_file(workers=[entry], drain={"notice_seconds": 60, "seconds": 60})
        with Serving(path) as serving:
            async with aiohttp.ClientSession() as http:
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                call = asyncio.create_task(
                    http.post(serving.url + "/v1/chat/completions", json=body).__aenter__()
                )
                while not worker.seen:
                    await asyncio.sleep(0.01)
                serving.process.send_signal(signal.SIGINT)
                line = await until_logged(serving, "stopping: ")
                serving.process.send_signal(signal.SIGINT)
                await asyncio.to_thread(serving.process.wait, 50)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
    assert "for 1 running request; a second signal ends it at once" in line


def test_a_unix_socket_is_removed_at_the_end_and_not_taken_from_another(settings_file, tmp_path, serve_here):
    socket = tmp_path / "gateway.sock"
    path = settings_file(listen={"unix_socket": str(socket)})
    with Serving(path) as serving:
        assert socket.is_socket()
        code, _, errors = serve_here("-c", path, "--set", f"state_directory={tmp_path}/other")
        assert (code, errors.splitlines()[-1]) == (
            1,
            f"radixgate: cannot listen on {socket}: Address already in use",
        )
        serving.process.kill()
        serving.process.wait()
    assert socket.exists()
    with Serving(path) as serving:  # What a kill leaves is no obstacle.
        assert serving.url == f"unix:{socket}"
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(60) == 0
    assert not socket.exists()


@pytest.fixture
def short_directory():
    """A directory for sockets, whose paths may have about a hundred bytes only."""
    with tempfile.TemporaryDirectory(prefix="rg-", dir="/tmp") as path:
        yield Path(path)


def test_socket_directories_of_the_dead_are_removed(settings_file, tmp_path, short_directory, monkeypatch):
    place = short_directory
    monkeypatch.setenv("TMPDIR", str(place))
    with Serving(settings_file()) as serving:
        (left,) = place.glob("radixgate-*")
        serving.process.kill()
        serving.process.wait()
    assert left.exists()
    (place / "radixgate-not-ours").mkdir(mode=0o700)
    (place / "radixgate-not-ours" / "lock").touch()
    (place / "radixgate-not-ours" / "more").touch()
    with Serving(settings_file(state_directory=str(tmp_path / "other"))):
        here = set(place.glob("radixgate-*"))
        assert left not in here
        assert place / "radixgate-not-ours" in here
        with Serving(settings_file(state_directory=str(tmp_path / "third"))):
            assert here < set(place.glob("radixgate-*"))


async def test_a_second_signal_stops_at_once(settings_file):
    async with ScriptedWorker() as worker:
        worker.then(silent=True)
        entry = {"id": "a", "kind": "sglang", "url": worker.url, "models": ["m"]}
        path = settings_file(workers=[entry], drain={"notice_seconds": 0, "seconds": 60})
        with Serving(path) as serving:
            async with aiohttp.ClientSession() as http:
                body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                call = asyncio.create_task(
                    http.post(serving.url + "/v1/chat/completions", json=body).__aenter__()
                )
                while not worker.seen:
                    await asyncio.sleep(0.01)
                serving.process.send_signal(signal.SIGTERM)
                await until_logged(serving, "stopping: ")
                serving.process.send_signal(signal.SIGTERM)
                # Less than the 60 seconds that it gives its requests after one signal.
                await asyncio.to_thread(serving.process.wait, 50)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize(
    ("listen", "reason"),
    [
        ({"host": "127.0.0.1.nowhere.invalid"}, "not known"),
        ({"unix_socket": "/nowhere/gateway.sock"}, "/nowhere/gateway.sock: No such file or directory"),
    ],
)
def test_an_address_that_cannot_be_is_one_line(settings_file, serve_here, listen, reason):
    tenants = [{"id": "acme"}]
    code, _, errors = serve_here("-c", settings_file(listen=listen, tenants=tenants))
    assert code == 1
    # The log says what else there is to say.
    (line,) = [line for line in errors.splitlines() if not line.startswith("{")]
    assert reason in line


def test_an_address_that_is_taken_is_one_line(settings_file, serve_here):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = settings_file(listen={"port": taken.getsockname()[1]})
        code, _, errors = serve_here("--config", path)
    assert code == 1
    assert "cannot listen on 127.0.0.1:" in errors
    assert "Traceback" not in errors


def test_one_state_directory_serves_one_gateway(settings_file, serve_here):
    path = settings_file()
    with Serving(path):
        code, _, errors = serve_here("--config", path)
    assert code == 1
    assert "is used by another gateway" in errors


def pids_of_valkey(directory):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                where = os.readlink(f"/proc/{name}/cwd")
            except OSError:
                continue
            if b"valkey-server" in command and where.startswith(str(directory)):
                found.append(int(name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_embedded_valkey_is_started_again_and_dies_with_its_gateway(settings_file, tmp_path):
    directory = tmp_path / "state"
    with Serving(settings_file()) as serving:
        (pid,) = pids_of_valkey(directory)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while pids_of_valkey(directory) in ([], [pid]):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        serving.process.kill()
        serving.process.wait()
        deadline = time.monotonic() + 60
        while pids_of_valkey(directory):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


@pytest.fixture
def limited_tenant(settings_file):
    """Settings with a tenant of ten requests a day, and a function that sends one and returns how many remain."""
    _, output, _ = run_command("keys", "new", "--config", settings_file())
    key = re.search(r"rg-\S+", output)[0]
    entry = yaml.safe_load(output.partition("settings:\n")[2])

    def settings(worker):
        return settings_file(
            workers=[{"id": "a", "kind": "sglang", "url": worker.url, "models": ["m"]}],
            plans=[{"name": "p", "limits": [{"requests": 10, "per": "day"}]}],
            tenants=[{"id": "acme", "plan": "p", "keys": entry}],
            # On a busy machine Valkey may need longer than the default, and the gateway would decide alone.
            redis={"timeout_ms": 2000},
        )

    async def send(serving):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            aiohttp.ClientSession() as http,
            http.post(serving.url + "/v1/chat/completions", json=body, headers=headers) as response,
        ):
            assert response.status == 200, await response.text()
            return int(response.headers["x-ratelimit-remaining-requests"])

    return settings, send


async def stop(serving):
    """Stop a gateway with SIGTERM, and wait until it has ended."""
    serving.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(serving.process.wait, 60)


async def test_what_tenants_have_used_survives_a_restart(limited_tenant):
    settings, send = limited_tenant
    async with ScriptedWorker() as worker:
        path, remaining = settings(worker), []
        for _ in range(2):
            with Serving(path) as serving:
                remaining.append(await send(serving))
                await stop(serving)
    assert remaining == [9, 8]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_gateway_started_in_place_of_a_stopped_one_grants_whole_limits_alone(
    limited_tenant, tmp_path
):
    """While Valkey is silent the gateway decides alone, and the stopped gateway has no share of the limits."""
    settings, send = limited_tenant
    async with ScriptedWorker() as worker:
        path, remaining = settings(worker), []
        for silent in (False, True, False):
            with Serving(path) as serving:
                remaining.append(await send(serving))
                if silent:
                    (valkey,) = pids_of_valkey(tmp_path / "state")
                    os.kill(valkey, signal.SIGSTOP)
                    remaining.append(await send(serving))
                    os.kill(valkey, signal.SIGCONT)
                await stop(serving)
    assert remaining == [9, 8, 7, 6]


def test_a_gateway_starts_without_torch_and_grpc(tmp_path):
    """Nothing on the way to serving imports torch, numpy or transformers, nor what only some settings need."""
    program = (
        "import sys, gateway.cli.main, gateway.runtime.server, gateway.web.admin_app\n"
        "unwanted = {'torch', 'numpy', 'transformers', 'safetensors', 'grpc'}\n"
        "print(sorted(unwanted & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--json", "/nope/x.json"], "--json: /nope/x.json cannot be written: No such file or directory"),
        (["--json", "."], "--json: . cannot be written: Is a directory"),
        (["--directory", "/proc/x"], "--directory: /proc/x cannot be used: No such file or directory"),
        (["--port", "99999"], "Invalid value for '--port'"),
    ],
)
def test_the_demo_reports_what_it_lacks_before_it_begins(tmp_path, arguments, expected):
    code, output, errors = run_command("demo", "--exit", "--directory", tmp_path, *arguments)
    assert (code, output) == (2, "")
    assert expected in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_second_demo_leaves_the_files_of_the_first_alone(tmp_path):
    import fcntl

    (tmp_path / "gateway.yaml").write_text("of the first")
    with open(tmp_path / "demo.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, errors = run_command("demo", "--exit", "--directory", tmp_path)
    assert (code, errors) == (1, f"radixgate: --directory: another demo is running in {tmp_path}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"gateway.yaml", "demo.lock"}
    assert (tmp_path / "gateway.yaml").read_text() == "of the first"


def test_a_demo_that_is_interrupted_has_not_succeeded(tmp_path):
    demo = subprocess.Popen(
        [sys.executable, "-m", "gateway", "demo", "--exit", "--directory", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    # It handles signals before it writes its first file; the lock is taken earlier.
    while not any(path.name != "demo.lock" for path in tmp_path.iterdir()):
        assert demo.poll() is None
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=120)
    assert (demo.returncode, errors) == (130, "")


@pytest.mark.timeout(300)
def test_the_demo_runs_and_its_figures_add_up(tmp_path):
    result = tmp_path / "out.json"
    code, output, errors = run_process(
        *("demo", "--exit", "--json", result, "--directory", tmp_path / "demo"),
        # Four sessions of one pace: by turns among two workers each would happen to meet its own worker again.
        *("--sessions", 2, "--turns", 3, "--workers", 3, "--port", 0, "--admin-port", 0),
        seconds_max=280,
    )
    assert code == 0, errors
    assert "cost against round_robin" in output
    assert re.search(r"acme asked: .*[?.]\nand was told:  [A-Z][a-z]+ ", output)
    assert "\u2026" not in output
    assert max(map(len, output.partition("The same sessions")[2].partition("against")[0].splitlines())) <= 80
    runs = json.loads(result.read_text())["runs"]
    assert set(runs) == {"round_robin", "cost"}
    for run in runs.values():
        assert (run["all"]["requests"], run["all"]["errors"]) == (12, 0)
        assert set(run["tenants"]) == {"acme", "globex"}
        for name in ("requests", "prompt_tokens", "cached_tokens", "output_tokens"):
            assert run["all"][name] == sum(tenant[name] for tenant in run["tenants"].values())
        # Every answer is a sentence, and ends by itself or at the most tokens.
        assert 12 * 5 < run["all"]["output_tokens"] <= 12 * 32
        assert 0 < run["all"]["hit_ratio"] < 1
        assert run["all"]["ttft_ms_p50"] > 0
    assert runs["cost"]["all"]["hit_ratio"] > runs["round_robin"]["all"]["hit_ratio"]
    assert runs["cost"]["all"]["prompt_tokens"] == runs["round_robin"]["all"]["prompt_tokens"]
