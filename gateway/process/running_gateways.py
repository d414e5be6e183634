"""The user's running gateways on this machine; each writes a file with the sources of its settings.

With these files commands find a gateway's database and secrets from any directory. The files are in a directory
that only this user can open. Each file is locked while its gateway runs, which distinguishes it from files of
killed gateways.
"""

import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from gateway.process.file_locks import create_locked, lock_file

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 256 * 1024
GATEWAYS_MAX = 1000


class GatewayInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that runs on this machine."""

    pid: int
    config: str | None
    """Absolute path of its settings file."""
    assignments: list[str]
    """Its values of --set."""
    variables: list[str]
    """Names of the environment variables that set some of its settings."""
    state_directory: str
    """Absolute path of its state directory."""
    admin_url: str
    """URL of its listener for operators."""


@contextmanager
def announced(gateway: GatewayInfo) -> Iterator[None]:
    """Let commands find this gateway while the context is open; log it if the file cannot be written."""
    with ExitStack() as stack:
        try:
            directory = _directory()
            directory.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(directory):
                raise PermissionError(f"{directory} is not a directory of this user alone")
            file = directory / str(gateway.pid)
            opened = stack.enter_context(create_locked(file))
            stack.callback(file.unlink, missing_ok=True)
            os.fchmod(opened.fileno(), 0o600)
            opened.write(msgspec.json.encode(gateway).decode())
            opened.flush()
        except OSError as err:
            log.info("commands on this machine will not find this gateway by themselves: %s", err)
        yield


def running_gateways() -> list[GatewayInfo]:
    """Return the gateways of this user that run on this machine, by process id."""
    directory = _directory()
    if not _is_private(directory):
        return []
    files = sorted(file for file in directory.glob("*") if file.name.isdecimal())[:GATEWAYS_MAX]
    found = (_read(file) for file in files)
    return [gateway for gateway in found if gateway is not None]


def _read(file: Path) -> GatewayInfo | None:
    """Return the content of the file; if its gateway does not run, remove the file and return None."""
    try:
        lock_file(file).close()
    except BlockingIOError:
        try:
            with file.open("rb") as opened:
                return msgspec.json.decode(opened.read(FILE_BYTES_MAX), type=GatewayInfo)
        except (OSError, msgspec.DecodeError):
            return None  # It is being written, or of another version.
    except OSError:
        return None
    file.unlink(missing_ok=True)
    return None


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"radixgate.{os.getuid()}"


def _is_private(directory: Path) -> bool:
    """Return whether the directory belongs to this user, and no other user can write or read it."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
