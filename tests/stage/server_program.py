"""The start of a server program by a test process.

`subprocess` copies the memory map of its process for a `preexec_fn`, and for a process with all tests that takes a
tenth of a second of CPU, now and in the page faults that follow. util-linux's setpriv does the same without it.
"""

import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any

from workers.launching.child_process import die_with_parent

SETPRIV = ("setpriv", "--pdeathsig", "TERM")


def start_program(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that the kernel ends with the thread that started it, where it can.

    `options`: further arguments of subprocess.Popen.
    """
    if _has_setpriv():
        return subprocess.Popen([*SETPRIV, *command], **options)
    return subprocess.Popen(command, preexec_fn=die_with_parent, **options)


@cache
def _has_setpriv() -> bool:
    try:
        return subprocess.run([*SETPRIV, "true"], capture_output=True).returncode == 0
    except OSError:
        return False
