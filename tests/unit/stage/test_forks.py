"""A fork prints, fails and ends as the program does."""

import re
import signal
import socket
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from gateway.process.children import ChildFailed
from tests.stage.forks import ForkedChild, fork_blocking

SECONDS_MAX = 60.0


def forked(tmp_path, *arguments):
    command = [sys.executable, "-m", "gateway", *arguments]
    return ForkedChild("gateway", lambda _: command, re.compile(r"radixgate (\S+)"), tmp_path / "log")


async def test_its_output_and_its_exit_code_are_those_of_the_program(tmp_path):
    child = forked(tmp_path, "--version")
    assert await child.start(SECONDS_MAX) == version("radixgate")
    assert await child._process.wait() == 0


async def test_its_failure_is_reported_with_its_exit_code_and_its_last_line(tmp_path):
    with pytest.raises(ChildFailed, match=r"ended with code 2: .* No such command 'nothing'"):
        await forked(tmp_path, "nothing").start(SECONDS_MAX)


def test_a_fork_that_is_waited_for_prints_fails_and_ends_as_the_program_does():
    for arguments, output, errors, code in (
        (["--version"], f"radixgate {version('radixgate')}\n", "", 0),
        (["nothing"], "", "No such command 'nothing'", 2),
    ):
        fork = fork_blocking("gateway", *arguments)
        assert fork.wait(SECONDS_MAX) == fork.poll() == code
        assert fork.stdout.read() == output
        assert errors in fork.stderr.read()


def test_a_fork_that_is_killed_has_the_exit_code_of_its_signal():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        fork = fork_blocking("gateway", "serve", "--worker", url)
        silent.accept()[0].close()
        assert fork.poll() is None
        fork.kill()
        assert fork.wait(SECONDS_MAX) == -signal.SIGKILL
    fork.kill()
    with pytest.raises(ProcessLookupError):
        fork.terminate()


def test_a_fork_can_be_started_after_the_thread_of_the_first_has_ended():
    own = ("gateway.cli.main",)
    thread = threading.Thread(target=lambda: fork_blocking("gateway", "--version", imported=own).wait())
    thread.start()
    there = thread.native_id
    thread.join()
    while Path(f"/proc/self/task/{there}").exists():
        time.sleep(0.001)
    assert fork_blocking("gateway", "--version", imported=own).wait(SECONDS_MAX) == 0
