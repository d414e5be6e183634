"""Run a command of radixgate inside the process of the test, without the start of a Python process."""

import io
import os
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from gateway.__main__ import main
from gateway.telemetry import logs


class CommandResult(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    output: str
    errors: str


def _leave_logging(level: str, log_format: str = "text") -> None:
    """Leave the logging of the test process as the test has it."""


def run_command(
    *arguments: object, stdin: str = "", directory: Path | None = None, **environment: str
) -> CommandResult:
    """Run a command to its end, in a working directory and with further environment variables.

    A command that starts event loops runs in a thread of its own if the test has a loop:
    `await asyncio.to_thread(run_command, ...)`. Working directory, environment and output belong to the whole
    process: one command at a time.
    """
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = 0
    with (
        patch.object(sys, "argv", ["radixgate", *map(str, arguments)]),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        patch.dict(os.environ, environment),
        patch.object(tempfile, "tempdir", None),  # It is found anew, from TMPDIR.
        patch.object(logs, "configure_logging", _leave_logging),
        chdir(directory or Path.cwd()),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    # No error of a user ends in a traceback: every other exception reaches the test.
    printed = [each.buffer.getvalue().decode() for each in (output, errors)]  # type: ignore[attr-defined]
    return CommandResult(int(str(code or 0)), *printed)
