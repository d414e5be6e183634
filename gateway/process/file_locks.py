"""Locks on files: held while the file is open, and let go by the system when the process ends, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import IO


def locked(file: Path) -> IO[str]:
    """Makes and locks the file. Raises BlockingIOError if another process has it, and OSError."""
    opened = open(file, "a")  # noqa: SIM115
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        opened.close()
        raise
    return opened


def locked_from_the_start(file: Path) -> IO[str]:
    """The same for a file that nobody must ever see unlocked: it gets its name when it is locked."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    opened = locked(draft)
    draft.rename(file)
    return opened
