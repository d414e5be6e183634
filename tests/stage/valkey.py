"""A real Valkey on a unix socket, which tests may stall, kill and start again."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.fakes.redis_cluster import server_binary
from tests.stage.server_program import start_program

READY_SECONDS_MAX = 60.0


class ValkeyServer:
    """A Valkey server process; with `keeps` its data survive a restart, in an append-only file."""

    def __init__(self, directory: Path, *, keeps: bool = False) -> None:
        self.directory = directory
        self.socket = directory / "s"
        self.process: subprocess.Popen[bytes] | None = None
        self._keeps = keeps

    @property
    def url(self) -> str:
        """The URL of the server's unix socket."""
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = ["--port", "0", "--unixsocket", str(self.socket), "--save", ""]
        options += ["--appendonly", "yes" if self._keeps else "no"]
        options += ["--dir", str(self.directory), "--logfile", "log"]
        self.process = start_program([server_binary(), *options])
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._accepts():
            assert time.monotonic() < deadline, "Valkey does not start"
            time.sleep(0.01)

    def _accepts(self) -> bool:
        """Return whether a connection succeeds: the file of the socket exists a moment before Valkey listens."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self.socket))
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kill the server."""
        if self.process is not None:
            # SIGKILL ends a stalled process too.
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.socket.unlink(missing_ok=True)
