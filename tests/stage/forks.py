"""Gateways and workers of tests as forks of a process that has imported them, which saves most CPU of their start.

A fork is a process of its own, with the signals and the exit code of one. Tests of memory and of the start itself
run real programs instead.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

import msgspec

from gateway.process.children import Child
from tests.stage.fork_server import ForkRequest

ROOT = Path(__file__).parents[2]
GATEWAY = ("gateway.cli.commands.serve",)
"""The module that is imported before the fork of a gateway or of another command, with all that it imports."""
WORKER = ("gateway.cli.commands.worker", "workers.engine_server.main")
"""The modules that are imported before the fork of a worker, with all that they import."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""The environment in which imports start no threads, which a fork would not have."""
POLL_SECONDS = 0.01


class ForkedProcess:
    """A running fork: its process id, its signals and its exit code."""

    def __init__(self, pid: int, keeper: socket.socket) -> None:
        """`keeper`: the socket on which the exit code comes."""
        self.pid = pid
        self._keeper = keeper
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        if self._code is None:
            with suppress(BlockingIOError):
                self._take_code()
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

    def _take_code(self) -> None:
        self._code = int(self._keeper.recv(16))
        self._keeper.close()


class Fork(ForkedProcess):
    """A running fork, with the attributes of `asyncio.subprocess.Process` that a Child and tests use."""

    def __init__(self, pid: int, keeper: socket.socket, stdout: asyncio.StreamReader) -> None:
        super().__init__(pid, keeper)
        self.stdout = stdout

    async def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        while (code := self.returncode) is None:
            await asyncio.sleep(POLL_SECONDS)
        return code


class BlockingFork(ForkedProcess):
    """A running fork, with the attributes of a `subprocess.Popen` in text mode that tests use."""

    def __init__(self, pid: int, keeper: socket.socket, stdout: IO[str], stderr: IO[str] | None) -> None:
        super().__init__(pid, keeper)
        self.stdout = stdout
        self.stderr = stderr

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, if the process has not ended."""
        with suppress(ProcessLookupError):
            super().kill()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, at most `timeout` seconds, and return the exit code. Raises TimeoutError."""
        if self._code is None:
            self._keeper.settimeout(timeout)
            self._take_code()
        assert self._code is not None
        return self._code


class ForkedChild(Child):
    """A child whose command `python -m MODULE ARGUMENTS...` is run by a fork."""

    async def _new_process(self, errors: IO[bytes] | None) -> Fork:  # type: ignore[override]
        assert errors is not None
        _, _, module, *arguments = self._command(self.url)
        environment = {**os.environ, **(self._environment or {})}
        return await fork_module(module, *arguments, environment=environment, errors=errors)


async def fork_module(
    module: str,
    *arguments: str,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
    imported: tuple[str, ...] = GATEWAY,
) -> Fork:
    """Run `python -m module arguments` in a fork, whose output is read by this event loop.

    `directory`, `environment`: those of this process where they are None; `errors`: the file of its standard error,
    which is discarded where that is None; `imported`: the modules that are imported before the fork.
    """
    descriptor = errors.fileno() if errors is not None else None
    pid, keeper, output = _start(imported, module, arguments, directory, environment, descriptor)
    stdout = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(output, "rb")
    )
    return Fork(pid, keeper, stdout)


def fork_blocking(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
    imported: tuple[str, ...] = GATEWAY,
) -> BlockingFork:
    """Run `python -m module arguments` in a fork, whose output is read as a file.

    `environment`: that of this process where it is None; `errors`: the file of its standard error, which is a pipe
    where that is None; `imported`: the modules that are imported before the fork.
    """
    if errors is not None:
        pid, keeper, output = _start(imported, module, arguments, None, environment, errors.fileno())
        return BlockingFork(pid, keeper, os.fdopen(output), None)
    read, write = os.pipe()
    try:
        pid, keeper, output = _start(imported, module, arguments, None, environment, write)
    finally:
        os.close(write)
    return BlockingFork(pid, keeper, os.fdopen(output), os.fdopen(read))


def _start(
    imported: tuple[str, ...],
    module: str,
    arguments: Sequence[str],
    directory: Path | None,
    environment: Mapping[str, str] | None,
    errors: int | None,
) -> tuple[int, socket.socket, int]:
    """Start a fork, and return its process id, the socket of its exit code, and the pipe of its output.

    `errors`: the descriptor of its standard error, which is discarded where that is None.
    """
    there = str(directory) if directory is not None else os.getcwd()
    request = ForkRequest(module, [*arguments], dict(environment or os.environ), there)
    keeper, keepers_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, written = os.pipe()
    nothing = os.open(os.devnull, os.O_WRONLY)
    with keepers_end:
        descriptors = [keepers_end.fileno(), written, errors if errors is not None else nothing]
        socket.send_fds(_server(imported), [msgspec.msgpack.encode(request)], descriptors)
    os.close(written)
    os.close(nothing)
    pid = int(keeper.recv(16))
    keeper.setblocking(False)
    return pid, keeper, output


@cache
def _server(imported: tuple[str, ...]) -> socket.socket:
    """Start a server of this process, and return the socket of its requests.

    The server ends when this process has closed the socket, and not with the thread that started it.
    """
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.stage.fork_server", *imported],
            stdin=theirs,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
        )
    return requests
