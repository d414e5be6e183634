"""The program that starts Python modules as forks of itself, for tests/stage/forks.py.

    python -m tests.stage.fork_server IMPORTED...

It imports the modules of its arguments, reads requests from the socket that is its standard input, and ends when
the other side closes it. Each fork has a keeper, one more fork, which waits for its end and sends its exit code.
"""

import gc
import importlib
import os
import runpy
import signal
import socket
import sys

import msgspec

from workers.launching.child_process import die_with_parent

REQUEST_BYTES_MAX = 128 * 1024
DESCRIPTORS = 3
"""Descriptors that come with a request: the socket of the keeper, standard output and standard error."""


class ForkRequest(msgspec.Struct):
    """A module to run as `python -m` does, with the arguments, environment and directory of the process."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str


def main() -> None:
    """Import the modules, and fork for every request."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel takes keepers away as they end.
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, DESCRIPTORS)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _keep(msgspec.msgpack.decode(message, type=ForkRequest), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(request: ForkRequest, reports: int, output: int, errors: int) -> None:
    """Fork once more; run the module in the fork, and wait here for its end.

    Its process id and then its exit code are written to the socket `reports`.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    pid = os.fork()
    if pid == 0:
        os.close(reports)
        _run(request, output, errors)
        return
    os.close(output)
    os.close(errors)
    os.write(reports, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(reports, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(request: ForkRequest, output: int, errors: int) -> None:
    """Run the module as the main program of this process."""
    os.setsid()
    die_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [request.module, *request.arguments]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
