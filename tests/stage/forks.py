"""Gateways of tests as forks of a process that has imported the gateway, which saves most CPU of their start.

A fork is a process of its own, with the signals and the exit code of one. Tests of memory and of the start itself
run real programs instead.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

import msgspec

from gateway.process.children import Child
from tests.stage.fork_server import ForkRequest
from tests.stage.server_program import start_program

ROOT = Path(__file__).parents[2]
IMPORTED = "gateway.cli.commands.serve"
"""The module that is imported before the fork, with all that it imports."""
POLL_SECONDS = 0.01


class Fork:
    """A running fork, with the attributes of `asyncio.subprocess.Process` that a Child uses."""

    def __init__(self, pid: int, keeper: socket.socket, stdout: asyncio.StreamReader) -> None:
        """`keeper`: the socket on which the exit code comes."""
        self.pid = pid
        self.stdout = stdout
        self._keeper = keeper
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        if self._code is None:
            with suppress(BlockingIOError):
                self._code = int(self._keeper.recv(16))
                self._keeper.close()
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal. Raises ProcessLookupError if the process has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM. Raises ProcessLookupError if the process has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. Raises ProcessLookupError if the process has ended."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        while (code := self.returncode) is None:
            await asyncio.sleep(POLL_SECONDS)
        return code


class ForkedChild(Child):
    """A child whose command `python -m MODULE ARGUMENTS...` is run by a fork."""

    async def _new_process(self, errors: IO[bytes] | None) -> Fork:  # type: ignore[override]
        assert errors is not None
        _, _, module, *arguments = self._command(self.url)
        environment = {**os.environ, **(self._environment or {})}
        pid, keeper, output = start_fork(module, arguments, environment, errors.fileno())
        stdout = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(output, "rb")
        )
        return Fork(pid, keeper, stdout)


def start_fork(
    module: str, arguments: Sequence[str], environment: dict[str, str], errors: int
) -> tuple[int, socket.socket, int]:
    """Start a fork, and return its process id, the socket of its exit code, and the pipe of its output."""
    request = ForkRequest(module, [*arguments], environment, os.getcwd())
    keeper, keepers_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, written = os.pipe()
    with keepers_end:
        descriptors = [keepers_end.fileno(), written, errors]
        socket.send_fds(_server(), [msgspec.msgpack.encode(request)], descriptors)
    os.close(written)
    pid = int(keeper.recv(16))
    keeper.setblocking(False)
    return pid, keeper, output


@cache
def _server() -> socket.socket:
    """Start the server of this process, and return the socket of its requests; it ends with this process."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        start_program([sys.executable, "-m", "tests.stage.fork_server", IMPORTED], stdin=theirs, cwd=ROOT)
    return requests
