"""Locks on files: held while the file is open, and released by the system when the process ends in any way."""

import fcntl
import os
from pathlib import Path
from typing import IO


def lock_file(file: Path) -> IO[str]:
    """Create the file if it is missing, lock it, and return it open.

    Raises BlockingIOError if another process holds the lock, and OSError.
    """
    opened = open(file, "a", opener=_open_private)  # noqa: SIM115
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        opened.close()
        raise
    return opened


def create_locked(file: Path) -> IO[str]:
    """Create a file that exists for other processes only once it is locked, and return it open.

    The file is locked under a temporary name first, and then renamed. Raises OSError.
    """
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    opened = lock_file(draft)
    draft.rename(file)
    return opened


def _open_private(name: str, flags: int) -> int:
    """Open a file that, if it is created, only this user may read, also in a directory that is open to all."""
    return os.open(name, flags, 0o600)
